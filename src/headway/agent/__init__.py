"""The agent: one on each machine, it runs what the servers order.

Two processes. The *exchange side* (exchange.py, main.py) talks to servers. The *supervisor* (supervisor.py around
machine.py) is the parent of every task, owns the truth about them and the deadline of the lease. Either may be
killed or frozen: see main.py.
"""
