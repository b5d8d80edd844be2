"""Which two datasets count as neighbours."""

import enum


class Neighbouring(enum.Enum):
    """The relation between two datasets that a guarantee hides.

    ADD_REMOVE   one dataset has one record more than the other
    REPLACE_ONE  both have the same size and differ in one record
    """

    ADD_REMOVE = "add/remove"
    REPLACE_ONE = "replace-one"

    def __str__(self) -> str:
        return self.value
