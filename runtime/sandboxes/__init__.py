"""Where agents live, one provider per file."""
