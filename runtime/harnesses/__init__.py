"""How to launch one kind of agent and read what it prints, one per file."""
