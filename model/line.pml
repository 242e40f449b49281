/*
 * One line: the jobs of one order key, which run one at a time in the order of their
 * places. Small enough to be checked in full. docs/understand/model.md maps each step
 * to the code and says what is left out.
 *
 * LINE and its places are one partition and change in one batch under LINE's version.
 * Each job is another partition, and so is each schedule entry: a change writes its
 * entry before its commit, looks at the line after it, and deletes the entry last.
 * PROCESSES identical processes do anything that any role may do next. Each may crash
 * between two writes, CRASHES times in all. LATES requests time out: they arrive later
 * or never, and the sender goes on or has crashed.
 *
 * A change of a job is decided on what its commit finds, because a commit that lost a
 * race is decided again; so it is one step here. What a look has read may be old.
 * The model has no clock: an entry may fire at any moment.
 *
 * No run goes on for ever (check.sh looks for cycles), and each must end with the line
 * empty or blocked: see QUIET.
 *
 * MUTANT breaks one rule, and must then be caught: see check.sh.
 */

#ifndef COMMANDS
#define COMMANDS 3       /* each for one job */
#endif
#ifndef CRASHES
#define CRASHES 1
#endif
#ifndef LATES
#define LATES 0          /* batches of the line that time out */
#endif
#ifndef LATE_COMMITS
#define LATE_COMMITS 0   /* commits of an accept that time out */
#endif
#ifndef FAILURES
#define FAILURES 0       /* jobs that fail and block; with on_failure `continue` a failure is DONE */
#endif
#ifndef REPEATS
#define REPEATS 0        /* requests with a command that is being accepted */
#endif
#ifndef RERUNS
#define RERUNS 0         /* commands that may be reruns */
#endif
#ifndef RELEASES
#define RELEASES 0
#endif
#ifndef CANCELS
#define CANCELS 0        /* of jobs that wait */
#endif
#ifndef PAUSES
#define PAUSES 0         /* of jobs that wait; each is resumed some time */
#endif
#ifndef DATES
#define DATES 0          /* jobs whose date is ahead when they are accepted */
#endif
#ifndef PAGES
#define PAGES 1          /* in which a look reads the places */
#endif
#ifndef MUTANT
#define MUTANT 0
#endif

#define REMOVE_BLIND        1  /* places are removed whatever LINE's version */
#define SAME_EPOCH          2  /* the batch that inserts LINE is sent again with its epoch */
#define NO_NEXT             3  /* a look counts places beyond the `next` that it read */
#define TURN_ANY_PLACE      4  /* a turn does not compare HEAD's place */
#define TURN_PARKED         5  /* a turn of a job whose date is ahead */
#define NO_LOOK_END         6  /* no look after the end of a job */
#define NO_LOOK_ACCEPT      7  /* after an accept */
#define NO_LOOK_RESUME      8  /* after a resume */
#define NO_LOOK_DATE        9  /* after a date was reached */
#define ENTRY_BEFORE_LOOK  10  /* the entry is deleted before the look */
#define NO_TOMBSTONE       11  /* the entry of a missing job is deleted without a tombstone */
#define LOST_RERUN_GONE    12  /* the place of a lost rerun is gone */
#define TAKE_BLIND         13  /* a rerun takes the place whatever its version */
#define RELEASE_IN_JOB     14  /* a release is a row of the job */
#define TAKE_RELEASED      15  /* a rerun takes a place that is released */
#define PLACE_AFTER        16  /* the place is written after the commit */
#define RELEASE_ENTRY_EARLY 17 /* the entry of a release is deleted while the release may still come */
#define CANCEL_UNBLOCKS    18  /* a cancelled rerun does not block */

#define JOBS      3
#define PROCESSES 2
#define LATE      PROCESSES    /* stands for a batch that timed out */
#define PLACES    5
#define NOJOB     JOBS
#define REPEAT    JOBS         /* the request that repeats a command; the others have their job's number */

/* Schedule entries. */
#define END(j)    (REPEAT + 1 + (j))
#define RESUME(j) (REPEAT + 1 + JOBS + (j))
#define WAKE(j)   (REPEAT + 1 + 2 * JOBS + (j))
#define DATE(j)   (REPEAT + 1 + 3 * JOBS + (j))
#define RELEASING (REPEAT + 1 + 4 * JOBS)
#define NOENTRY   (RELEASING + 1)

mtype:job = { MISSING, TOMBSTONE, QUEUED, PARKED, PAUSED, BEGUN, DONE, FAILED, CANCELLED }
mtype:batch = { NONE, INSERT, PLACE, TAKE, RELEASE, REMOVE }

/* The line's partition. */
byte next;                          /* 0: LINE is missing */
byte count, epoch;
byte place[PLACES + 1] = NOJOB;     /* the job of each place, by seq from 1; NOJOB: no place */
byte took[PLACES + 1] = NOJOB;      /* the job whose place a rerun took */
bool released[PLACES + 1];

/* The jobs' partitions. */
mtype:job state[JOBS + 1] = MISSING;
byte seqOf[JOBS + 1], epochOf[JOBS + 1];
byte tookOf[JOBS + 1] = NOJOB;

bool entry[NOENTRY + 1];

/* Requests: what the command says. */
byte accepted;                      /* how many first requests have come */
byte rerunOf[JOBS + 1] = NOJOB;
bool dated[JOBS + 1];
byte repeatOf = NOJOB;
byte releaseOf = NOJOB;

/* The batch that each process is about to send. */
mtype:batch batch[PROCESSES + 1] = NONE;
bool fresh[PROCESSES + 1];          /* LINE has not changed since it was read */
byte batchJob[PROCESSES + 1] = NOJOB;
byte batchSeq[PROCESSES + 1], batchEpoch[PROCESSES + 1];   /* of the place; afterwards of the accept's place */
byte batchTook[PROCESSES + 1] = NOJOB;
bool renewed[PROCESSES];            /* the release's entry was written again while the process fires it */
byte seenEpoch[PROCESSES];          /* LINE's, as a look read it */
byte batchGone[PROCESSES + 1];      /* a set of places to remove */
bool batchLast[PROCESSES + 1];      /* they are all places that there are */
byte lateCommit = NOJOB;            /* the job of a commit that timed out */
bool lateFirst;
byte lateSeq, lateEpoch, lateTook = NOJOB;

/* Only for the check. */
byte crashes = CRASHES, lates = LATES, lateCommits = LATE_COMMITS, failures = FAILURES, repeats = REPEATS;
byte reruns = RERUNS, releases = RELEASES, cancels = CANCELS, pauses = PAUSES, dates = DATES;
bool over[JOBS + 1];                /* the job's place was removed or released */
bool rowReleased[JOBS + 1];         /* of RELEASE_IN_JOB */

#define BIT(q)       (1 << (q))
#define HAS(set, q)  (((set) & BIT(q)) != 0)
#define WAITS(j)     (state[j] == QUEUED || state[j] == PARKED || state[j] == PAUSED)
#define LIVE(j)      (WAITS(j) || state[j] == BEGUN)
#define COMMITTED(j) (state[j] != MISSING && state[j] != TOMBSTONE)
#define BLOCKS(j)    (!rowReleased[j] && \
	(state[j] == FAILED || (state[j] == CANCELLED && tookOf[j] != NOJOB)))

/* The truth about a place. */
#define HERE(q)   (place[q] != NOJOB)
#define NAMED(q)  (epochOf[place[q]] == epoch && seqOf[place[q]] == (q))
#define COUNTS(q) (HERE(q) && !released[q] && (state[place[q]] == MISSING || \
	(state[place[q]] == TOMBSTONE && took[q] != NOJOB && BLOCKS(took[q])) || \
	(COMMITTED(place[q]) && NAMED(q) && (LIVE(place[q]) || BLOCKS(place[q])))))
/* It counts because of job j. */
#define STANDS(j) (next != 0 && epochOf[j] == epoch && seqOf[j] != 0 && COUNTS(seqOf[j]) && \
	(place[seqOf[j]] == j || (state[place[seqOf[j]]] == TOMBSTONE && took[seqOf[j]] == j)))
#define BLOCKED(j) (STANDS(j) && BLOCKS(j))

/* L1 */
#define ONE_RUNS ((state[0] == BEGUN) + (state[1] == BEGUN) + (state[2] == BEGUN) <= 1)
/* L2: no place before q counts. */
#define FIRST(q) (!((q) > 1 && COUNTS(1)) && !((q) > 2 && COUNTS(2)) && \
	!((q) > 3 && COUNTS(3)) && !((q) > 4 && COUNTS(4)))
/* L3 */
#define PLACED(j) (!LIVE(j) || (next != 0 && epochOf[j] == epoch && place[seqOf[j]] == j))
/* L4 */
#define COUNTED (count == HERE(1) + HERE(2) + HERE(3) + HERE(4) + HERE(5) && (next == 0) == (count == 0) && \
	(!HERE(1) || next > 1) && (!HERE(2) || next > 2) && (!HERE(3) || next > 3) && \
	(!HERE(4) || next > 4) && (!HERE(5) || next > 5))
/* L5: the first place that counts is in hand, or an entry will look. */
#define ENDLOOK(j) (entry[END(j)] && COMMITTED(j) && !LIVE(j))
#define WILL_LOOK (entry[0] || entry[1] || entry[2] || entry[REPEAT] || ENDLOOK(0) || ENDLOOK(1) || ENDLOOK(2) || \
	entry[RESUME(0)] || entry[RESUME(1)] || entry[RESUME(2)] || entry[WAKE(0)] || entry[WAKE(1)] || entry[WAKE(2)] || \
	entry[RELEASING])
#define IN_HAND(q) (state[place[q]] == BEGUN || state[place[q]] == PAUSED || BLOCKS(place[q]) || \
	state[place[q]] == TOMBSTONE || (state[place[q]] == PARKED && entry[DATE(place[q])]) || \
	(state[place[q]] == MISSING && (entry[place[q]] || (repeatOf == place[q] && entry[REPEAT]))) || \
	(state[place[q]] == QUEUED && WILL_LOOK))
#define ATTENDED (COUNTS(1) -> IN_HAND(1) : (COUNTS(2) -> IN_HAND(2) : (COUNTS(3) -> IN_HAND(3) : \
	(COUNTS(4) -> IN_HAND(4) : (!COUNTS(5) || IN_HAND(5))))))
/* L7 */
#define STAYS_GONE(j) (!over[j] || !STANDS(j))

#define STILL(j)  (!entry[j] && !entry[END(j)] && !entry[RESUME(j)] && !entry[WAKE(j)] && !entry[DATE(j)])
#define NONE_COUNTS (!COUNTS(1) && !COUNTS(2) && !COUNTS(3) && !COUNTS(4) && !COUNTS(5))
#define ABANDONED (state[0] == TOMBSTONE || state[1] == TOMBSTONE || state[2] == TOMBSTONE)
/* The end of each run: no entry is left, and the line is blocked, or empty but for a
 * place that came after its accept was abandoned, or late. */
#define QUIET (STILL(0) && STILL(1) && STILL(2) && !entry[REPEAT] && !entry[RELEASING] && \
	batch[LATE] == NONE && lateCommit == NOJOB && \
	((BLOCKED(0) && FIRST(seqOf[0])) || (BLOCKED(1) && FIRST(seqOf[1])) || (BLOCKED(2) && FIRST(seqOf[2])) || \
	 (!LIVE(0) && !LIVE(1) && !LIVE(2) && (count == 0 || (NONE_COUNTS && (ABANDONED || lates < LATES))))))

inline check() {
	assert(ONE_RUNS);
	assert(PLACED(0) && PLACED(1) && PLACED(2));
	assert(COUNTED);
	assert(ATTENDED);
	assert(STAYS_GONE(0) && STAYS_GONE(1) && STAYS_GONE(2))
}

/* A job begins: by its first commit, or by a turn. */
inline begin(j) {
	assert(!dated[j]);
	assert(FIRST(seqOf[j]));
	state[j] = BEGUN
}

inline commitAccept(job, inserted, e, s, t) {
	epochOf[job] = e; seqOf[job] = s; tookOf[job] = t;
	if
	:: dated[job] -> state[job] = PARKED
	:: !dated[job] && inserted -> begin(job)
	:: !dated[job] && !inserted -> state[job] = QUEUED
	fi;
	check()
}

/* The place of a job that ended and does not block is gone, whatever HEAD names. */
inline closed(job) { epochOf[job] = 0; seqOf[job] = 0; tookOf[job] = NOJOB }

/* An entry goes. */
inline drop(e) { entry[e] = false; check() }

inline lineChanged() { fresh[0] = false; fresh[1] = false; fresh[2] = false }

/* A place is gone for good. */
inline gone(q) {
	assert(!COUNTS(q));
	if
	:: epochOf[place[q]] == epoch && seqOf[place[q]] == q -> over[place[q]] = true
	:: else
	fi;
	if
	:: took[q] != NOJOB -> over[took[q]] = true
	:: else
	fi
}

#define MAYAPPLY(me) (batch[me] == INSERT -> next == 0 : \
	next != 0 && (fresh[me] || (batch[me] == REMOVE && MUTANT == REMOVE_BLIND) || \
	(batch[me] == TAKE && MUTANT == TAKE_BLIND && epoch == batchEpoch[me] && HERE(batchSeq[me]))))

inline apply(me) {
	if
	:: batch[me] == INSERT ->
		next = 2; count = 1; epoch = batchEpoch[me]; place[1] = batchJob[me]
	:: batch[me] == PLACE ->
		assert(next == batchSeq[me] && next <= PLACES);
		place[next] = batchJob[me]; next++; count++
	:: batch[me] == TAKE ->
		place[batchSeq[me]] = batchJob[me]; took[batchSeq[me]] = batchTook[me]; released[batchSeq[me]] = false
	:: batch[me] == RELEASE ->
		released[batchSeq[me]] = true; gone(batchSeq[me])
	:: batch[me] == REMOVE ->
		n = 1;
		do
		:: n <= PLACES && HAS(batchGone[me], n) && HERE(n) ->
			gone(n); place[n] = NOJOB; took[n] = NOJOB; released[n] = false; count--; n++
		:: n <= PLACES && !(HAS(batchGone[me], n) && HERE(n)) -> n++
		:: else -> break
		od;
		n = 0;
		if
		:: batchLast[me] -> next = 0; epoch = 0
		:: else
		fi
	fi;
	lineChanged();
	check()
}

inline clearBatch(me) {
	batch[me] = NONE; fresh[me] = false; batchJob[me] = NOJOB; batchSeq[me] = 0; batchEpoch[me] = 0;
	batchTook[me] = NOJOB; batchGone[me] = 0; batchLast[me] = false
}

inline makeLate(me) {
	lates--;
	batch[LATE] = batch[me]; fresh[LATE] = fresh[me]; batchJob[LATE] = batchJob[me]; batchSeq[LATE] = batchSeq[me];
	batchEpoch[LATE] = batchEpoch[me]; batchTook[LATE] = batchTook[me]; batchGone[LATE] = batchGone[me];
	batchLast[LATE] = batchLast[me]
}

/* A random epoch: a number that no one knows. */
#define KNOWN(e) (epoch == (e) || epochOf[0] == (e) || epochOf[1] == (e) || epochOf[2] == (e) || lateEpoch == (e) || \
	seenEpoch[0] == (e) || seenEpoch[1] == (e) || batchEpoch[0] == (e) || batchEpoch[1] == (e) || batchEpoch[2] == (e))
inline newEpoch(me) {
	if
	:: MUTANT == SAME_EPOCH && batchEpoch[me] != 0
	:: else ->
		batchEpoch[me] = 0; n = 1;
		do
		:: KNOWN(n) -> n++
		:: else -> break
		od;
		batchEpoch[me] = n; n = 0
	fi
}

/* P, of which HEAD of t tells, blocks because of HOLDER: of t, or of a rerun since that was cancelled.
 * The rerun of t can take it. */
#define P_OF(t)     seqOf[t]
#define READ_P(t)   (next != 0 && epochOf[t] == epoch && HERE(P_OF(t)))
#define HOLDER(q)   (state[place[q]] == TOMBSTONE -> took[q] : place[q])
#define MAYTAKE(t)  (READ_P(t) && (!released[P_OF(t)] || MUTANT == TAKE_RELEASED) && \
	(state[place[P_OF(t)]] == TOMBSTONE || NAMED(P_OF(t))) && HOLDER(P_OF(t)) != NOJOB && BLOCKS(HOLDER(P_OF(t))) && \
	(HOLDER(P_OF(t)) == t || state[HOLDER(P_OF(t))] == CANCELLED))

/* What a look finds of place q that it read as job j: the first that fits. */
#define SEEN_NAMED(j, q)    (MUTANT == TURN_ANY_PLACE || (epochOf[j] == seenEpoch[me] && seqOf[j] == (q)))
#define SEEN_GONE(j, q)     (HAS(seenReleased, q) || \
	(state[j] == TOMBSTONE && (took[q] == NOJOB || !BLOCKS(took[q]) || MUTANT == LOST_RERUN_GONE)) || \
	(COMMITTED(j) && (!SEEN_NAMED(j, q) || (!LIVE(j) && (!BLOCKS(j) || \
		(MUTANT == CANCEL_UNBLOCKS && state[j] == CANCELLED))))))
#define MAYPAUSE(j)         (state[j] == QUEUED || state[j] == PARKED)
#define FAILURE(j)          (state[j] == FAILED || (state[j] == CANCELLED && tookOf[j] != NOJOB))
#define MAYTURN(j)          (state[j] == QUEUED || (state[j] == PARKED && MUTANT == TURN_PARKED))

inline forget(me) {
	clearBatch(me); mine = NOENTRY; first = false; n = 0;
	renewed[me] = false; clearSeen(me)
}

inline clearSeen(me) {
	j = NOJOB; q = 0; seenEpoch[me] = 0; seenNext = 0; seenReleased = 0; seenGone = 0;
	seen[1] = NOJOB; seen[2] = NOJOB; seen[3] = NOJOB; seen[4] = NOJOB; seen[5] = NOJOB
}

#define LEFT(p) (seen[p] != NOJOB && !HAS(seenGone, p))
inline read(p) {
	if
	:: HERE(p) && (p < seenNext || MUTANT == NO_NEXT) ->
		seen[p] = place[p];
		if
		:: released[p] -> seenReleased = seenReleased | BIT(p)
		:: else
		fi
	:: else
	fi
}

inline crash(me) {
	crashes--;
	if
	:: lates > 0 && batch[me] != NONE -> makeLate(me)
	:: true
	fi;
	forget(me)
}

inline mayCrash(me) {
	if
	:: crashes > 0 -> crash(me); goto endIdle
	:: true
	fi
}

/* What a process does next. What it writes before a commit is part of the commit here:
 * the entry of a change that does not come stands for nothing, as outbox.pml shows. */
proctype process(byte me) {
	byte mine = NOENTRY;           /* the entry to delete after the look */
	byte j = NOJOB, q, n;
	bool first;                    /* the accept inserted LINE */
	byte seenNext, seenReleased, seenGone;
	byte seen[PLACES + 1] = NOJOB;
endIdle:
	atomic {
		if
		/* A command, its entry written; the rerun of a job that failed; the repeat of a
		 * command, which takes over its claim and so the job's id. */
		:: accepted < COMMANDS ->
			j = accepted; accepted++; mine = j; entry[mine] = true;
			if
			:: dates > 0 -> dates--; dated[j] = true; entry[DATE(j)] = true
			:: true
			fi;
			goto plan
		:: accepted < COMMANDS && reruns > 0 && FAILURE(0) -> n = 0; goto rerun
		:: accepted < COMMANDS && reruns > 0 && FAILURE(1) -> n = 1; goto rerun
		:: repeats > 0 && accepted > 0 && state[0] == MISSING -> j = 0; goto repeat
		:: repeats > 0 && accepted > 1 && state[1] == MISSING -> j = 1; goto repeat
		:: repeats > 0 && accepted > 2 && state[2] == MISSING -> j = 2; goto repeat

		/* The job that runs ends; callers and operators. */
		:: state[0] == BEGUN -> j = 0; goto end
		:: state[1] == BEGUN -> j = 1; goto end
		:: state[2] == BEGUN -> j = 2; goto end
		:: cancels > 0 && WAITS(0) -> j = 0; goto cancel
		:: cancels > 0 && WAITS(1) -> j = 1; goto cancel
		:: cancels > 0 && WAITS(2) -> j = 2; goto cancel
		:: pauses > 0 && MAYPAUSE(0) -> j = 0; goto pause
		:: pauses > 0 && MAYPAUSE(1) -> j = 1; goto pause
		:: pauses > 0 && MAYPAUSE(2) -> j = 2; goto pause
		:: state[0] == PAUSED -> j = 0; goto resume
		:: state[1] == PAUSED -> j = 1; goto resume
		:: state[2] == PAUSED -> j = 2; goto resume
		:: releases > 0 && BLOCKED(0) -> releaseOf = 0; releases--; goto release
		:: releases > 0 && BLOCKED(1) -> releaseOf = 1; releases--; goto release
		:: releases > 0 && BLOCKED(2) -> releaseOf = 2; releases--; goto release

		/* The sweeper fires an entry. */
		:: entry[0] -> mine = 0; j = 0; goto fireAccept
		:: entry[1] -> mine = 1; j = 1; goto fireAccept
		:: entry[2] -> mine = 2; j = 2; goto fireAccept
		:: entry[REPEAT] -> mine = REPEAT; j = repeatOf; goto fireAccept
		:: ENDLOOK(0) -> mine = END(0); goto look
		:: ENDLOOK(1) -> mine = END(1); goto look
		:: ENDLOOK(2) -> mine = END(2); goto look
		:: entry[RESUME(0)] -> mine = RESUME(0); goto look
		:: entry[RESUME(1)] -> mine = RESUME(1); goto look
		:: entry[RESUME(2)] -> mine = RESUME(2); goto look
		:: entry[WAKE(0)] -> mine = WAKE(0); goto look
		:: entry[WAKE(1)] -> mine = WAKE(1); goto look
		:: entry[WAKE(2)] -> mine = WAKE(2); goto look
		:: entry[DATE(0)] && state[0] != MISSING -> j = 0; goto fireDate
		:: entry[DATE(1)] && state[1] != MISSING -> j = 1; goto fireDate
		:: entry[DATE(2)] && state[2] != MISSING -> j = 2; goto fireDate
		:: entry[RELEASING] && !BLOCKED(releaseOf) -> mine = RELEASING; renewed[me] = false; goto look
		:: entry[RELEASING] && BLOCKED(releaseOf) ->
			/* Past the grace: from now on the release cannot come. */
			if
			:: MUTANT != RELEASE_ENTRY_EARLY -> lineChanged()
			:: else
			fi;
			drop(RELEASING); goto endIdle
		fi;
rerun:
		reruns--; j = accepted; accepted++; mine = j; entry[mine] = true; rerunOf[j] = n; n = 0;
		goto plan;
repeat:
		repeats--; repeatOf = j; mine = REPEAT; entry[mine] = true;
		goto plan;
end:
		mine = END(j); entry[mine] = true;
		if
		:: failures > 0 -> failures--; state[j] = FAILED
		:: true -> state[j] = DONE; closed(j)
		fi;
		check();
		if
		:: MUTANT == NO_LOOK_END -> goto finish
		:: else -> goto changed
		fi;
cancel:
		cancels--; mine = END(j); entry[mine] = true; state[j] = CANCELLED; dated[j] = false;
		if
		:: !BLOCKS(j) -> closed(j)
		:: else
		fi;
		check();
		goto changed;
pause:
		pauses--; state[j] = PAUSED; j = NOJOB;
		check();
		goto endIdle;
resume:
		if
		:: dated[j] -> entry[DATE(j)] = true; state[j] = PARKED; j = NOJOB; check(); goto endIdle
		:: true -> dated[j] = false; mine = RESUME(j); entry[mine] = true; state[j] = QUEUED
		fi;
		check();
		if
		:: MUTANT == NO_LOOK_RESUME -> goto finish
		:: else -> goto changed
		fi;
fireDate:
		entry[DATE(j)] = false;
		if
		:: state[j] == PARKED -> dated[j] = false; mine = WAKE(j); entry[mine] = true; state[j] = QUEUED
		:: else -> j = NOJOB; goto endIdle
		fi;
		check();
		if
		:: MUTANT == NO_LOOK_DATE -> goto finish
		:: else -> goto changed
		fi;
fireAccept:
		if
		:: state[j] == MISSING && MUTANT != NO_TOMBSTONE -> state[j] = TOMBSTONE; check()
		:: else
		fi;
		goto changed
	}

release:                                /* of releaseOf, under LINE and P as they are read */
	atomic {
		mine = RELEASING;
		if
		:: READ_P(releaseOf) && released[P_OF(releaseOf)] -> goto changed      /* an earlier try */
		:: BLOCKED(releaseOf) ->
			entry[mine] = true; renewed[1 - me] = true;
			if
			:: MUTANT == RELEASE_IN_JOB -> rowReleased[releaseOf] = true; goto changed
			:: else -> batch[me] = RELEASE; batchSeq[me] = P_OF(releaseOf); fresh[me] = true
			fi
		:: else -> goto finish          /* 409 */
		fi
	}
	goto send;

plan:                                   /* of an accept: read LINE, and P that a rerun might take */
	atomic {
		if
		:: MUTANT == PLACE_AFTER ->
			batchEpoch[me] = epoch; batchSeq[me] = next; goto commit
		:: else
		fi;
		if
		:: rerunOf[j] != NOJOB && READ_P(rerunOf[j]) && place[P_OF(rerunOf[j])] == j ->
			batchSeq[me] = P_OF(rerunOf[j]); batchEpoch[me] = epoch; batchTook[me] = took[P_OF(rerunOf[j])];
			goto commit                     /* an earlier try took it */
		:: else
		fi;
		batchJob[me] = j; fresh[me] = true; batchTook[me] = NOJOB;
		if
		:: rerunOf[j] != NOJOB && MAYTAKE(rerunOf[j]) ->
			batch[me] = TAKE; batchSeq[me] = P_OF(rerunOf[j]); batchEpoch[me] = epoch;
			batchTook[me] = HOLDER(P_OF(rerunOf[j]))
		:: !(rerunOf[j] != NOJOB && MAYTAKE(rerunOf[j])) && next == 0 ->
			batch[me] = INSERT; batchSeq[me] = 1; newEpoch(me)
		:: !(rerunOf[j] != NOJOB && MAYTAKE(rerunOf[j])) && next != 0 ->
			batch[me] = PLACE; batchSeq[me] = next; batchEpoch[me] = epoch
		fi
	}
send:
	atomic {
		if
		:: crashes > 0 -> crash(me); goto endIdle
		:: lates > 0 -> makeLate(me); goto unknown
		:: MAYAPPLY(me) -> apply(me)
		:: !MAYAPPLY(me) -> goto again
		fi;
applied:
		if
		:: batch[me] == RELEASE -> clearBatch(me); goto changed
		:: batch[me] == REMOVE -> clearBatch(me); goto finish
		:: else -> first = (batch[me] == INSERT); batch[me] = NONE; fresh[me] = false; goto commit
		fi;
again:
		if
		:: batch[me] == RELEASE -> clearBatch(me); goto release
		:: batch[me] == REMOVE -> clearBatch(me); goto look
		:: else -> batch[me] = NONE; goto plan
		fi
	}
unknown:                                /* read P */
	atomic {
		if
		:: batch[me] != RELEASE && batch[me] != REMOVE && next != 0 && epoch == batchEpoch[me] &&
		   place[batchSeq[me]] == j -> goto applied
		:: else -> goto again
		fi
	}
commit:                                 /* of an accept; its place is known and kept */
	atomic {
		mayCrash(me);
		if
		:: lateCommits > 0 ->
			lateCommits--; lateCommit = j; lateEpoch = batchEpoch[me]; lateSeq = batchSeq[me]; lateTook = batchTook[me];
			lateFirst = first;
			goto commit
		:: true
		fi;
		if
		:: state[j] == MISSING -> commitAccept(j, first, batchEpoch[me], batchSeq[me], batchTook[me]);
			if
			:: state[j] == BEGUN || MUTANT == NO_LOOK_ACCEPT -> goto finish
			:: else
			fi
		:: state[j] == TOMBSTONE -> forget(me); goto endIdle      /* it starts over, as another job */
		:: COMMITTED(j)
		fi
	}
changed:                                /* after a commit: read LINE, then the places, then the job of each */
	atomic {
		mayCrash(me);
		clearBatch(me); first = false; j = NOJOB;
		if
		:: MUTANT == ENTRY_BEFORE_LOOK -> drop(mine); mine = NOENTRY
		:: else
		fi;
look:
		if
		:: next == 0 -> goto finish
		:: else -> fresh[me] = true; seenEpoch[me] = epoch; seenNext = next
		fi
	}
	atomic {
		if
		:: epoch != seenEpoch[me] -> clearSeen(me); goto look
		:: else -> read(1); read(2); q = 1
		fi;
#if PAGES == 1
		read(3); read(4); read(5); seenNext = 0
#endif
	}
#if PAGES > 1
	atomic {
		if
		:: epoch != seenEpoch[me] -> clearSeen(me); goto look
		:: else -> read(3); read(4); read(5); seenNext = 0
		fi
	}
#endif
walk:
	atomic {
		do
		:: q <= PLACES && seen[q] == NOJOB -> q++
		:: else -> break
		od;
		if
		:: q > PLACES -> goto remove
		:: else -> j = seen[q]
		fi;
		if
		:: SEEN_GONE(j, q) -> seenGone = seenGone | BIT(q); q++; goto walk
		:: !SEEN_GONE(j, q) && MAYTURN(j) -> goto turn
		:: else                 /* it runs, is parked or paused, blocks, or is pending */
		fi;
remove:
		if
		:: seenGone == 0 -> goto finish
		:: else
		fi;
		batch[me] = REMOVE; batchGone[me] = seenGone;
		batchLast[me] = (LEFT(1) + LEFT(2) + LEFT(3) + LEFT(4) + LEFT(5) == 0);
		clearSeen(me);
		goto send
	}
turn:
	atomic {
		if
		:: MAYTURN(j) && SEEN_NAMED(j, q) -> begin(j); check()
		:: else
		fi;
		goto remove
	}
finish:
	atomic {
		mayCrash(me);
		if
		:: mine == NOENTRY || (mine == RELEASING && renewed[me])      /* not the entry that it fired */
		:: else -> drop(mine)
		fi;
		forget(me); goto endIdle
	}
}

/* What timed out arrives, or is lost. */
active proctype network() {
	byte n;
endIdle:
	do
	:: atomic { batch[LATE] != NONE ->
		if
		:: MAYAPPLY(LATE) -> apply(LATE)
		:: true
		fi;
		clearBatch(LATE) }
	:: atomic { lateCommit != NOJOB ->
		if
		:: state[lateCommit] == MISSING -> commitAccept(lateCommit, lateFirst, lateEpoch, lateSeq, lateTook)
		:: true
		fi;
		lateCommit = NOJOB; lateFirst = false; lateEpoch = 0; lateSeq = 0; lateTook = NOJOB }
	od
}

init {
	atomic { run process(0); run process(1) };
	timeout -> assert(QUIET)
}
