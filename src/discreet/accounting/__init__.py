"""What a run costs: events to certified epsilon, beside what papers claim. Never imports torch.

Read in this order: `events` (what happened), `rules` (what is proven), `accountants` (what it costs). Import names from
the module that defines them: only some of these modules need numpy.
"""
