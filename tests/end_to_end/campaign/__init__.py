"""Campaigns of faults: random cells of several notebooks, random faults, and a model of what may be true afterwards.

The seed alone determines a campaign: which service it starts (`stage`), which cells the notebooks run (`cells`), what
fails and when (`faults`). A `student` sends cells and compares the results with its `model`.
"""

from end_to_end.campaign.run import Campaign, Findings, run

__all__ = ["Campaign", "Findings", "run"]
