"""Proposers of draft tokens."""

from litspec.draft.early_exit import EarlyExitProposer
from litspec.draft.model import ModelProposer
from litspec.draft.ngram import NgramProposer
from litspec.draft.proposer import DraftCost, DraftRow, Proposal, Proposer

__all__ = ["DraftCost", "DraftRow", "EarlyExitProposer", "ModelProposer", "NgramProposer", "Proposal", "Proposer"]
