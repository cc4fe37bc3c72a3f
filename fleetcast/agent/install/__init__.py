"""Puts the agent onto a host as a service of systemd's, renews it there, and takes it off again.

`files/` holds what is written as it is. `node_files` says what a node is to have and where, `tree`
brings a folder of the host (or of an image that is being built) to that, `live_host` has systemd
follow. Users and folders are described to systemd-sysusers and systemd-tmpfiles, so that an image
gets them when it first boots.
"""
