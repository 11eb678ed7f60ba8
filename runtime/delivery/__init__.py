"""External delivery logs: a run's chunks in a log that is not Outlast's own, or in ours through the same port.

    durability.py   the port `StreamDurability`: what any such log must do
    memory.py       one in this process: bounded, gone with it
    own_log.py      Outlast's own log, behind the same port
    records.py      the ports `RunStore` and `RunRecords`: runs, and who drives which, by compare-and-set
    own_runs.py     Outlast's own runs, as a `RunStore`
    threads.py      the port `MessageStore`: what a thread says; in memory, and Outlast's own
    locks.py        the port `LockStore`: keeps drivers from crowding; protects nothing
    file_locks.py, postgres_locks.py    locks of one host, and locks that cross hosts
    claim.py        take the right to drive one run, and the latch that its loss closes
    fences.py       log and record as one claim may write them
    quiet.py        wait until an older driver's writes have stopped coming
    replay.py       drop from a replay what the log holds
    pipe.py         one run's chunks into its log, to one ending
    driver.py       all of it in order: what a user calls
    controller.py   runs in the background of one process
    errors.py       what can go wrong, by what the handler does

What is promised. I1, I2 and I5 are promised for Outlast's own log alone. An external log promises what it can:

    the log says `fences`       check and write are one step. A driver that was paused for an hour is refused, its
                                close as well, and a successor need not wait
    it does not                 a refusal comes from *before* the write: a driver that is paused between the two, or
                                between two looks at the record, still writes. A successor waits until the log is
                                quiet, which makes that unlikely, not impossible; and closing is not fenced at all,
                                so that readers are let go by whoever ends first

The record is fenced either way: `RunRecords` checks and writes in one step, so no older driver ends a run.
"""
