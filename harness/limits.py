"""Every deadline, cap and size, each with its reason.

A deadline here is a safety net: the harness waits for facts, and a deadline that expires is reported
as the harness's trouble or as a limit the client broke, never as a verdict on what it did.
"""

from __future__ import annotations

# --- waiting for facts ------------------------------------------------------------------------------

#: A client must reach the boundary it is to be held at. A slow laptop under load needs a second.
HOLD_WAIT_S = 10.0
#: After SIGKILL the kernel reaps at once; anything near this is a broken machine.
KILL_WAIT_S = 5.0
#: After the proxy let go, the server notices within its `client_connection_check_interval` (20 ms).
BACKEND_GONE_WAIT_S = 10.0
#: How often a fact is asked for. Small, because a kill and its verdict should cost about 20 ms.
POLL_S = 0.001
#: initdb takes half a second, a start a tenth; a loaded machine with slow disks far longer.
SERVER_START_WAIT_S = 60.0
#: A fast shutdown of a server without clients takes a tenth of a second.
SERVER_STOP_WAIT_S = 15.0
#: The embedded server stays this long after its last user left, so that the next command finds it warm.
SERVER_LINGER_S = 3.0

# --- what one client may use ------------------------------------------------------------------------

#: Wall time of one client process. The longest graded call (5,000 orders) takes about a second.
CLIENT_WALL_S = 30.0
#: CPU time of one client process; an endless loop hits this or the wall.
CLIENT_CPU_S = 20.0
#: Address space of a client. psycopg and a big fetch need about 100 MB.
CLIENT_MEMORY_BYTES = 1 << 30
#: Processes in the client's group. A lab needs one; a learner's debugging may fork a few.
CLIENT_PROCESSES = 16
#: Bytes a client may print before it is ended. More than any debugging print, less than a full disk.
CLIENT_OUTPUT_BYTES = 4 << 20
#: Lines of its output that are kept and shown.
CLIENT_OUTPUT_LINES = 32
#: A result by value larger than this is refused: 20,000 child IDs need a tenth of it.
CLIENT_RESULT_BYTES = 16 << 20

# --- the wire ---------------------------------------------------------------------------------------

#: PostgreSQL's own limit for one message is 1 GiB; a larger length is a broken stream.
FRAME_BYTES_MAX = 1 << 30
#: SQL text kept in a boundary or a wire log line; long enough to recognise any statement of the labs.
SQL_TEXT_MAX = 300
#: Wire log lines kept for one lane; a drain of 5,000 orders row by row writes about 60,000.
WIRE_LOG_LINES = 100_000

# --- the server -------------------------------------------------------------------------------------

#: The oldest server with everything the kit uses (`client_connection_check_interval`).
SERVER_VERSION_MIN = 140000
#: SCRAM iterations for passwords that are random and live for one run; the default 4096 costs 3 ms.
SCRAM_ITERATIONS = 64
#: Learner sessions that wait for a lock, or idle in a transaction, longer than this are ended by the server.
LEARNER_LOCK_TIMEOUT_MS = 8_000
LEARNER_IDLE_TRANSACTION_MS = 20_000
