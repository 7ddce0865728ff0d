"""Prompt sets: built-in tasks, files and data sets of the hub."""

from gspo_lightning.data.prompts.curricula import Curriculum
from gspo_lightning.data.prompts.files import HubPrompts, PromptFile, open_prompts, read_prompts
from gspo_lightning.data.prompts.mixture import Mixture, MixtureSource
from gspo_lightning.data.prompts.prompt_set import Completion, Demonstration, PromptSet, Record, map_columns
from gspo_lightning.data.prompts.tasks.calculation import CalculatorTask
from gspo_lightning.data.prompts.tasks.chain import ChainTask
from gspo_lightning.data.prompts.tasks.code import CodeTask
from gspo_lightning.data.prompts.tasks.guess import GuessTask
from gspo_lightning.data.prompts.tasks.logic import LogicTask
from gspo_lightning.data.prompts.tasks.reasoning_gym import ReasoningGym
from gspo_lightning.data.prompts.tasks.squares import SquaresTask
from gspo_lightning.data.prompts.tasks.verifiers import VerifiersTasks
from gspo_lightning.data.prompts.tasks.word_problems import WordProblems

__all__ = [
    "CalculatorTask",
    "ChainTask",
    "CodeTask",
    "Completion",
    "Curriculum",
    "Demonstration",
    "GuessTask",
    "HubPrompts",
    "LogicTask",
    "Mixture",
    "MixtureSource",
    "PromptFile",
    "PromptSet",
    "ReasoningGym",
    "Record",
    "SquaresTask",
    "VerifiersTasks",
    "WordProblems",
    "map_columns",
    "open_prompts",
    "read_prompts",
]
