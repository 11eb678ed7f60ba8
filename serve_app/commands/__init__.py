"""The commands of `outlast`, one a module; what they share: `exits`, `options`, `following`."""
