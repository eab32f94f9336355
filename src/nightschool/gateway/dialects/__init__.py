"""What the gateway knows of each wire format."""
