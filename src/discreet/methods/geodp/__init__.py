"""GeoDP (arXiv 2504.05618): noise on magnitude and direction; as published, and two certified variants."""
