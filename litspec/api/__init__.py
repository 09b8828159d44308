"""What users touch: the LLM class, the server's rooms, their configuration."""
