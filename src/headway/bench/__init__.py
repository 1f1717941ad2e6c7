"""`headway bench`: what this machine does with Headway, durable or not at all.

main         options, order of scenarios, report
instance     the Headway under test: a throw-away one, or one that runs
durability   why a database is no ground for figures
ledger       what SQL says happened: the only judge of what is finished
load         the load generator, a process of its own; bodies: what it sends; connection: how
scenarios    throughput, submission, latency, backlog, executables, idle, sustained
floor        what the machine does without Headway, measured in between, so that its drift shows
figures      percentiles and rates; processes: CPU and memory of others

SQL appears here, outside the store, on purpose: a judge does not ask the code it judges.
"""
