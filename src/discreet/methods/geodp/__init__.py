"""GeoDP (arXiv 2504.05618): noise on magnitude and direction, as published and in two certified variants."""
