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
#: The command that had a server started arrives within milliseconds, or was killed in between.
SERVER_FIRST_USER_WAIT_S = 5.0

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
#: A result by value larger than this is refused: 20,000 child IDs need a tenth of it, and JSON made
#: to hurt takes thirty times its size in memory.
CLIENT_RESULT_BYTES = 4 << 20
#: Nesting of a result. The contract's deepest value has four levels.
CLIENT_RESULT_DEPTH = 32
#: Python refuses to print integers of more than 4,300 digits; no lab needs a tenth of this.
CLIENT_RESULT_INT_BITS = 4096
#: Characters of an error's text, and frames of its traceback, that are kept.
CLIENT_ERROR_CHARS = 8_000
CLIENT_ERROR_FRAMES = 20
#: Characters kept of one printed line where only the last lines are kept.
CLIENT_LINE_CHARS = 2_000
#: One file a client writes, and its open descriptors: a lab writes none and opens one connection.
CLIENT_FILE_BYTES = 64 << 20
CLIENT_FILES = 256
#: The kernel's CPU limit stands this far behind ours, so that ours speaks first.
CLIENT_CPU_SLACK_S = 2
#: Address space beyond resident memory: a Python process maps far more than it touches.
CLIENT_ADDRESS_SLACK_BYTES = 512 << 20
#: How often a client's use is measured. Long enough to cost nothing, short against every limit.
CLIENT_WATCH_S = 0.05
#: A client whose answer channel is closed is ending; one that lives on after this closed it itself.
CLIENT_CLOSING_WAIT_S = 1.0
#: A fork server imports psycopg in 0.3 s; a cold disk under load takes seconds.
FORK_SERVER_START_WAIT_S = 30.0

#: A client that handles 5,000 orders one by one passes 20,000 gated units: ten seconds, far more under load.
PATIENT_WALL_S = 180.0
PATIENT_CPU_S = 90.0
#: Once a client of a lab broke a limit, the lab's other checks get this much: a loop is a loop in all
#: of them, and a learner should not wait ten minutes to read it eight times. A sound call takes a tenth.
HURRIED_WALL_S = 10.0
HURRIED_CPU_S = 5.0

# --- what a command takes ---------------------------------------------------------------------------

#: Orders of one scenario. A demo of so many takes minutes; more would only fill the memory.
ORDERS_MAX = 100_000
#: Orders a chunk: `jobs.chunk_size` is an int of PostgreSQL.
CHUNK_MAX = 2_147_483_647
#: Kills of one `lab bench`.
KILLS_MAX = 1_000_000

# --- the wire ---------------------------------------------------------------------------------------

#: PostgreSQL's own limit for one message is 1 GiB; a larger length is a broken stream.
FRAME_BYTES_MAX = 1 << 30
#: A startup packet larger than this is refused by PostgreSQL itself.
STARTUP_BYTES_MAX = 10_000
#: A message up to this size is looked at as a whole; a longer one streams through in pieces.
FRAME_WHOLE_BYTES = 1 << 16
#: Of an answer that is withheld, this much is kept. What is beyond flows on; its end is still withheld.
ANSWER_KEPT_BYTES = 1 << 18
#: Bytes that a client may send ahead of the gate before the proxy stops reading its socket.
CLIENT_AHEAD_BYTES = 1 << 18
#: The harness's own question on an idle session is a SHOW; it takes a millisecond.
ASK_WAIT_S = 5.0
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
#: Sessions of one learner role at a time. A lab needs three; a leak must not use up the server.
LEARNER_CONNECTIONS = 20
#: A connect over a Unix socket takes 2 ms; one over the internet to a given server far longer.
CONNECT_WAIT_S = 10
#: Rows deleted since the last TRUNCATE, after which `clear` truncates (6 ms) instead of deleting (1 ms):
#: dead rows slow every later scan down, and autovacuum is off.
CLEAR_ROWS_MAX = 20_000
#: A deadlock is looked for after this wait. The default of a second would be most of a run's time.
DEADLOCK_TIMEOUT_MS = 50
#: The longest path of a Unix socket: 108 bytes on Linux, 104 on macOS, with the final zero.
SOCKET_PATH_BYTES = 103

# --- the learner's query ----------------------------------------------------------------------------

#: One query over a job of 5,000 orders takes 50 ms; one that joins everything with everything, minutes.
QUERY_WAIT_MS = 10_000
#: Rows of its result that are looked at; no check expects a tenth of it.
QUERY_ROWS = 500

# --- the learner's loop -------------------------------------------------------------------------------

#: `lab check --watch` waits this long for a second change after a first: editors save in steps.
WATCH_STEP_MS = 50
#: Changes that keep coming are answered at the latest after this; the promise is half a second.
WATCH_DEBOUNCE_MS = 200
#: How often the watch looks whether `q` was pressed.
WATCH_KEY_MS = 100
#: The progress file is written in a millisecond; whoever holds its lock longer has died or hangs.
PROGRESS_LOCK_WAIT_S = 10.0

# --- sweeps -----------------------------------------------------------------------------------------

#: A sweep ends when its fault no longer fires. A client that never gets done is stopped here.
SWEEP_BOUNDARIES_MAX = 10_000
#: Databases swept side by side: one client's steps follow each other, so one alone leaves a core idle.
SWEEP_JOBS = 2
#: A sweep's approval: three chunks, so that the middle one has one before and one after; the last is short.
SWEEP_ORDERS = 23
SWEEP_CHUNK = 10
#: The lock timeout of a client that is to meet one. Long against a healthy wait, short for a test.
VICTIM_LOCK_TIMEOUT_MS = 100
#: A program of somebody else may be a JVM or a Node: they map far more memory than they use.
PROGRAM_WALL_S = 120.0
PROGRAM_MEMORY_BYTES = 8 << 30
PROGRAM_PROCESSES = 256
#: How often a program is started again after a kill until it exits 0.
PROGRAM_RESUMES = 3
#: Rows of a user's check that are shown.
VIOLATIONS_SHOWN = 10
#: Stories drawn from one seed, and rules in one story: enough to mix, short enough to read.
MACHINE_EXAMPLES = 10
MACHINE_STEPS = 15

# --- pages ------------------------------------------------------------------------------------------

#: Characters of SQL that a page shows of a statement; the text is there to recognise it.
PAGE_SQL_CHARS = 160
#: Stories that one page holds. Each is about 10 kB; a sweep of a lab has fewer boundaries.
PAGE_STORIES_MAX = 400
#: Scenes of one graded check that its page keeps: the last ones, because a check stops where it fails.
PAGE_SCENES_MAX = 40

# --- the live board ---------------------------------------------------------------------------------

#: Orders of a board that is played live: every step is sent as a whole.
BOARD_ORDERS_MAX = 400
#: Clients on one stage at a time. Two show everything; more only wait in line.
BOARD_WORKERS_MAX = 4
#: A client on the board stands still while somebody thinks or talks; it is ended after this.
BOARD_WALL_S = 3_600.0
#: Boundaries follow one another at this pace when a client is let run, so that it can be watched.
BOARD_PACE_S = 0.03
#: Another owner who meets a lock on the board waits this long, then says that it is held.
BOARD_RIVAL_LOCK_MS = 500
#: After a command, the board waits this long for the client's next boundary before it says "busy".
BOARD_PATIENCE_S = 0.5
#: A command of the page has six short fields.
BOARD_BODY_BYTES = 4_096

# --- notebooks ----------------------------------------------------------------------------------------

#: JupyterLab answers after two seconds; on a cold disk under load after many.
JUPYTER_START_WAIT_S = 90.0
#: It ends its kernels first, each of which closes its workshop; then whatever is left is killed.
JUPYTER_STOP_WAIT_S = 20.0
#: One cell of a notebook takes some seconds; on a loaded machine many times that.
NOTEBOOK_CELL_WAIT_S = 300
