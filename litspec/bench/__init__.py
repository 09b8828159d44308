"""What `litspec bench` measures and how it shows it."""
