"""The command line: `headway COMMAND`, one module for each noun, imported only when its command is called."""
