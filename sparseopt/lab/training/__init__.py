"""Training a configuration from beginning to end: data, network, masks, optimizer, loop, measurements."""
