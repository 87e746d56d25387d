"""Machine code for a CPU's narrow forwards, generated when it is first needed; see README.md."""
