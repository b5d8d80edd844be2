"""D2P2-SGD, D2P-SGD and DP2-SGD (arXiv 2509.09485): decaying noise, random projection, or both."""
