"""The on-node agent: listens on NATS for launches only while the node has room for them."""
