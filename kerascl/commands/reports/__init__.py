"""What `python -m kerascl report` measures, part by part, and the file that it writes."""
