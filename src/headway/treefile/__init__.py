"""Task files: YAML or JSON text to trees of tasks, with errors that name line and column.

document   text → nodes with marks           fields     a task's entries → TaskSpec
values     nodes → values, parameters         elements   the shape of a tree
schedules  schedule, overlap, misfire         joining    names, edges, levels
loading    which mapping is a tree            files      the disk
schema     JSON Schema for editors            drawing    a plan as text, Mermaid, DOT, JSON
"""

from headway.treefile.files import load_file
from headway.treefile.loading import load
from headway.treefile.model import Tree, TreeTask

__all__ = ["Tree", "TreeTask", "load", "load_file"]
