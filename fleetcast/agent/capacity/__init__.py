"""What a node has for instances, what they have taken of it, and which types fit."""
