/*
 * One job whose directives go through the pull queue, small enough to be checked
 * in full. docs/understand/model.md maps each step to the code and says what is left out.
 *
 * HEAD, step, outbox and item of the job change in one commit under HEAD's
 * version. Ready hints, the slot and schedule entries lie in other partitions: a
 * change writes what it needs before its commit (pre) and deletes what it ended
 * after it (post). PROCESSES identical processes do anything that any role may do
 * next. Each may crash between two writes, CRASHES times in all; a commit or a hint
 * that it had sent may still arrive later.
 *
 * A hint is early while HEAD is below its rev, that is while no commit came since
 * its writer loaded the job. The model has no clock: a deadline, a retry or a grace
 * may be over at any moment.
 *
 * No run goes on for ever (check.sh looks for cycles), and each must end with the
 * job finished and nothing left of it: see QUIET.
 *
 * MUTANT breaks one rule, and must then be caught: see check.sh.
 */

#ifndef STEPS
#define STEPS 1
#endif
#ifndef ATTEMPTS
#define ATTEMPTS 2       /* attempts of each step: the last one has no retry */
#endif
#ifndef CRASHES
#define CRASHES 1
#endif
#ifndef ACCEPTS
#define ACCEPTS 1        /* requests with the command, all under one job id */
#endif
#ifndef RAISES
#define RAISES 1         /* early hints that outlive their grace */
#endif
#ifndef PAUSES
#define PAUSES 0         /* pauses of the job; each is resumed some time */
#endif
#ifndef CANCELS
#define CANCELS 0
#endif
#ifndef SCOPES
#define SCOPES 0         /* 1: a scope that covers the job is paused, and resumed */
#endif
#ifndef MUTANT
#define MUTANT 0
#endif

#define NO_CAS                1  /* a commit does not compare versions */
#define KEY_WITHOUT_REV       2  /* a hint's key has the attempt but not the rev */
#define CLAIM_PENDING         3  /* a claim takes a row that is PENDING */
#define CLAIM_OTHER_ATTEMPT   4  /* a claim hands out the attempt of its hint, whatever the item's */
#define HINT_AFTER            5  /* the hint is written after the commit */
#define DELETE_EARLY          6  /* an early hint is deleted on sight */
#define RAISE_BLIND           7  /* after raising rev a hint is deleted without another look */
#define NO_TOMBSTONE          8  /* the hint of a missing job is deleted without a tombstone */
#define TOMBSTONE_BLIND       9  /* after a tombstone that lost the race the hint is deleted */
#define PURGE_LEAVES_HINT    10  /* a purge deletes no hint */
#define REQUEUE_LEAVES_HINT  11  /* a requeue forgets the hint of the delivery before */
#define DEADLINE_WITHOUT_ITEM 12 /* a deadline's commit leaves the item out */
#define CALLBACK_WITHOUT_ITEM 13 /* a callback's commit leaves the item out */
#define STALE_PUBLISH        14  /* a process with an old view of the pauses publishes */
#define STALE_CLAIM          15  /* a process with an old view of the pauses hands out */
#define HELD_FOR_EVER        16  /* no relay takes up the rows that a pause held */
#define CLAIM_WITHOUT_TIMER  17  /* a claim writes no timer entry */
#define REPAIR_COUNTS        18  /* a missing hint counts as a defect before the commit proves it */
#define SAME_PAIR            19  /* a requeue keeps the pair */

#define PROCESSES 2
#define LATE    PROCESSES        /* stands for what a crashed process had sent */
#ifndef HINTS
#define HINTS   4
#endif
#define NOHINT  HINTS
#define CURRENT (step * ATTEMPTS + attempt)
#define NOPAIR  (STEPS * ATTEMPTS)

mtype:job = { NEVER, LIVE, TOMBSTONE, PURGED }
mtype:ctl = { RUN, PAUSING, PAUSED, CANCELLING, ENDED }
mtype:st = { WAITING, DISPATCHING, AWAITING_ACK, IN_PROGRESS, FAILED_RETRY, TERMINAL }
mtype:why = { BY_DEADLINE, BY_RESULT, WITHDRAWN }
mtype:ob = { NOROW, PENDING, SENT, CLOSED }
mtype:item = { NONE, OPEN, DONE }
mtype:q = { NOITEM, QUEUED, CLAIMED, RUNNING, STALLED, SUCCEEDED, FAILED }
mtype:kind = { IDLE, ACCEPT, ENTOMB, CLAIM, ACK, RESULT, RETRY, DEADLINE, REDISPATCH, MARK, DROP,
	PAUSE, RESUME, CANCEL, RAISE, DISCARD, PUT }
mtype:scope = { FREE, NEW, SETTLED, RESUMED }

/* The job's partition: one commit point. */
mtype:job  job = NEVER;
mtype:ctl  ctl = RUN;
mtype:st   state = WAITING;
mtype:why  why = WITHDRAWN;      /* how FAILED_RETRY came about */
mtype:ob   outbox = NOROW;
mtype:item item = NONE;
byte step, attempt;
bool lease;                      /* the claim's */
byte owner;                      /* of the item, 0 for none */
byte ready = NOHINT;             /* the hint that the item names, or named before it was claimed */
bool head;                       /* HEAD names an entry; that it is there then, outbox.pml shows */

/* Other partitions. */
bool hint[HINTS + 1], early[HINTS + 1];
bool first[HINTS + 1];           /* of rev 1 */
byte pairOf[HINTS + 1];          /* the attempt in its key */
bool kept[HINTS + 1];            /* an item's row has its key */
bool slot;
mtype:scope scope = FREE;        /* SETTLED: views from before the pause are too old to be used */

/* What each process is about to do. */
mtype:kind kind[PROCESSES + 1] = IDLE;
bool fresh[PROCESSES + 1];       /* no commit came since it loaded */
bool open[PROCESSES + 1];        /* it makes a row SENT; a DROP: it had to put the hint back */
byte newHint[PROCESSES + 1] = NOHINT;
bool newHead[PROCESSES + 1];
byte oldHint[PROCESSES + 1] = NOHINT;

/* Only for the check. */
byte crashes = CRASHES, accepts = ACCEPTS, raises = RAISES, pauses = PAUSES, cancels = CANCELS;
mtype:q status = NOITEM;         /* the item by the lifecycle's edges */
byte handed;                     /* the worker that was given the current pair */
byte advanced[STEPS];
bool named[HINTS + 1];           /* an item named it, and no repair wrote it since */

#define ALIVE   (job == LIVE && ctl != ENDED)
#define HELD    ((state == AWAITING_ACK && lease) || state == IN_PROGRESS)
#define INQUEUE (state == AWAITING_ACK && !lease)
#define NAMES(h) (ALIVE && INQUEUE && ready == h)
#define FINAL   (attempt == ATTEMPTS - 1)
#define LASTSTEP (step == STEPS - 1)

#define FREEHINT(h) (!hint[h] && !(INQUEUE && ready == h) && \
	newHint[0] != h && newHint[1] != h && newHint[2] != h && oldHint[0] != h && oldHint[1] != h && oldHint[2] != h)

/* Right after a pause or a resume a process may act on either view. Once the pause is
 * settled, its view is right or too old: it publishes and hands out nothing. */
#define MAYPUBLISH (scope != SETTLED || MUTANT == STALE_PUBLISH)
#define MAYHOLD    (scope != FREE)
#define MAYHAND    (scope != SETTLED || MUTANT == STALE_CLAIM)

/* The status of the item that the rows show: step, outbox, item. */
#define SHOWS ( \
	(state == WAITING      && status == NOITEM  && item != OPEN) || \
	(state == DISPATCHING  && status == NOITEM  && outbox == PENDING && item == NONE) || \
	(state == DISPATCHING  && status == STALLED && outbox == PENDING && item == OPEN && owner == 0) || \
	(state == AWAITING_ACK && status == QUEUED  && outbox == SENT && item == OPEN && owner == 0 && !lease) || \
	(state == AWAITING_ACK && status == CLAIMED && outbox == SENT && item == OPEN && owner != 0 && lease) || \
	(state == IN_PROGRESS  && status == RUNNING && outbox == SENT && item == OPEN && owner != 0) || \
	(state == FAILED_RETRY && why == BY_DEADLINE && status == STALLED && outbox == SENT && item == OPEN && owner == 0) || \
	(state == FAILED_RETRY && why == BY_RESULT && status == FAILED && outbox == SENT && item == DONE) || \
	(state == FAILED_RETRY && why == WITHDRAWN && status == NOITEM && outbox != PENDING && item == NONE) || \
	(state == TERMINAL     && status == NOITEM  && outbox != PENDING && item == NONE) || \
	(state == TERMINAL     && (status == SUCCEEDED || status == FAILED) && outbox == SENT && item == DONE))

/* A way forward: the entry that HEAD names, or the hint that the queued item names. */
#define FOUND (job != LIVE || head || ctl == PAUSED || (ctl == ENDED && !slot) || \
	(ctl != ENDED && INQUEUE && hint[ready]))

/* The end of each run: the job is purged, or its accept was given up. */
#define QUIET (job != LIVE && !slot && kind[LATE] == IDLE && \
	!hint[0] && !hint[1] && !hint[2] && !hint[3])

inline check() {
	assert(FOUND);
	assert(!(ALIVE && INQUEUE) || hint[ready])     /* a queued item has its hint */
}

inline move(from, to) { assert(status == from); status = to }

inline forget(me) {
	kind[me] = IDLE; fresh[me] = false; open[me] = false;
	newHint[me] = NOHINT; oldHint[me] = NOHINT; newHead[me] = false;
	n = 0;                                                /* an unused hint looks like a new one */
	do
	:: n < HINTS && FREEHINT(n) -> kept[n] = false; named[n] = false; first[n] = false; pairOf[n] = 0; n++
	:: n < HINTS && !FREEHINT(n) -> n++
	:: else -> break
	od;
	if
	:: item != OPEN -> ready = NOHINT
	:: else
	fi;
	n = 0
}

/* The new hint has the key of one that is there. */
#define SAMEKEY(h, x) (pairOf[h] == x && ((hint[h] && early[h]) || \
	(MUTANT == KEY_WITHOUT_REV && (hint[h] || oldHint[0] == h || oldHint[1] == h))))

/* Write a hint of attempt x for the next rev. Two processes that decide on one rev in
 * the same millisecond come to the same key. */
inline takeHint(me, x) {
	n = 0;
	do
	:: n < HINTS && SAMEKEY(n, x) -> break
	:: n < HINTS && !(SAMEKEY(n, x) && MUTANT == KEY_WITHOUT_REV) -> n++
	:: n == HINTS -> break
	od;
	wrote = (n == HINTS);
	if
	:: wrote ->
		n = 0;
		do
		:: n < HINTS && !FREEHINT(n) -> n++
		:: else -> break
		od;
		assert(n < HINTS);
		kept[n] = false; named[n] = false; pairOf[n] = x; first[n] = (kind[me] == ACCEPT)
	:: else
	fi;
	newHint[me] = n;
	if
	:: MUTANT != HINT_AFTER -> hint[n] = true; early[n] = true
	:: else
	fi;
	n = 0
}

/* Decide how to make the row of attempt x: SENT with a hint, or PENDING with a dispatch
 * entry. A mark only comes once it may publish. */
inline makeRow(me, x) {
	if
	:: MAYPUBLISH ->
		assert(scope != SETTLED);
		open[me] = true;
		takeHint(me, x);
		/* The batch that writes a requeue's hint deletes the hint of the delivery before. */
		if
		:: item == OPEN && !HELD && kept[ready] && MUTANT != REQUEUE_LEAVES_HINT -> hint[ready] = false
		:: else
		fi
	:: MAYHOLD && kind[me] != MARK -> newHead[me] = true
	fi
}

/* Crash within the pre stage: the hint was not written, or is still on its way. */
inline crashEarly(me) {
	crashes--;
	if
	:: newHint[me] != NOHINT && wrote ->
		hint[newHint[me]] = false; early[newHint[me]] = false;
		if
		:: kind[LATE] == IDLE -> kind[LATE] = PUT; newHint[LATE] = newHint[me]; fresh[LATE] = true
		:: true
		fi
	:: true
	fi
}

/* Crash after sending the commit. */
inline crashSent(me) {
	crashes--;
	kind[LATE] = kind[me]; fresh[LATE] = fresh[me]; open[LATE] = open[me];
	newHint[LATE] = newHint[me]; newHead[LATE] = newHead[me]
}

inline nextAttempt() {
	if
	:: MUTANT != SAME_PAIR -> attempt++; handed = 0
	:: else
	fi
}

/* A RESULT ends an item that is held, and removes one that is stalled. */
inline endItem(how) {
	if
	:: status == STALLED -> status = NOITEM; item = NONE
	:: status == CLAIMED || status == RUNNING -> status = how;
		if
		:: MUTANT == CALLBACK_WITHOUT_ITEM
		:: else -> item = DONE; owner = 0
		fi
	fi;
	lease = false
}

inline removeItem(me) {
	if
	:: INQUEUE -> oldHint[me] = ready
	:: else
	fi;
	if
	:: item == OPEN -> item = NONE; status = NOITEM
	:: else
	fi;
	if
	:: outbox == PENDING -> outbox = CLOSED
	:: else
	fi
}

inline endJob() { ctl = ENDED; state = TERMINAL; lease = false }

/* What a change does to the job's rows. */
inline decide(me) {
	if
	:: kind[me] == ACCEPT -> assert(job == NEVER); job = LIVE; row = true
	:: kind[me] == ENTOMB -> assert(job != LIVE); job = TOMBSTONE     /* no accepted job is lost */
	:: kind[me] == CLAIM ->
		move(QUEUED, CLAIMED);
		assert(outbox == SENT && handed == 0);             /* one worker has the pair */
		handed = me + 1; owner = me + 1; lease = true; state = AWAITING_ACK;
		oldHint[me] = ready
	:: kind[me] == ACK -> move(CLAIMED, RUNNING); state = IN_PROGRESS
	:: kind[me] == RESULT ->
		advanced[step]++;
		assert(advanced[step] == 1);                               /* each step advances once */
		endItem(SUCCEEDED);
		if
		:: LASTSTEP || ctl == CANCELLING -> endJob()
		:: else ->
			step++; attempt = 0; handed = 0;
			item = NONE; status = NOITEM;
			if
			:: ctl == RUN -> row = true
			:: else -> ctl = PAUSED; state = WAITING; outbox = NOROW
			fi
		fi
	:: kind[me] == RETRY ->
		endItem(FAILED);
		if
		:: FINAL || ctl == CANCELLING -> endJob()
		:: else ->
			state = FAILED_RETRY; why = BY_RESULT;
			if
			:: ctl == PAUSING -> ctl = PAUSED
			:: else
			fi
		fi
	:: kind[me] == DEADLINE ->
		status = STALLED; lease = false;
		if
		:: MUTANT != DEADLINE_WITHOUT_ITEM -> owner = 0
		:: else
		fi;
		if
		:: FINAL || ctl == CANCELLING -> removeItem(me); endJob()
		:: else ->
			state = FAILED_RETRY; why = BY_DEADLINE;
			if
			:: ctl == PAUSING -> ctl = PAUSED
			:: else
			fi
		fi
	:: kind[me] == REDISPATCH -> nextAttempt(); row = true
	:: kind[me] == MARK -> assert(outbox == PENDING); row = true
	:: kind[me] == DROP -> assert(!open[me])                        /* no named hint was missing */
	:: kind[me] == PAUSE ->
		if
		:: HELD -> ctl = PAUSING
		:: else ->
			if
			:: state != FAILED_RETRY -> removeItem(me); state = FAILED_RETRY; why = WITHDRAWN
			:: else
			fi;
			ctl = PAUSED
		fi
	:: kind[me] == RESUME ->
		if
		:: ctl == PAUSED ->
			if
			:: state != WAITING -> nextAttempt()
			:: else
			fi;
			row = true
		:: else
		fi;
		ctl = RUN
	:: kind[me] == CANCEL ->
		if
		:: HELD -> ctl = CANCELLING
		:: else -> removeItem(me); endJob()
		fi
	:: kind[me] == RAISE
	fi;
	if
	:: row && open[me] ->
		state = AWAITING_ACK; outbox = SENT; lease = false; owner = 0;
		if
		:: item == OPEN -> move(STALLED, QUEUED); kept[ready] = false
		:: else -> status = QUEUED; item = OPEN
		fi;
		ready = newHint[me]; kept[ready] = true; named[ready] = true
	:: row && !open[me] ->
		state = DISPATCHING; outbox = PENDING; lease = false; owner = 0;
		if
		:: item != OPEN -> item = NONE; status = NOITEM       /* a stalled one waits for its requeue */
		:: else
		fi
	:: !row
	fi;
	row = false
}

inline commit(me) {
	assert(kind[me] == ACCEPT || kind[me] == ENTOMB || ALIVE);       /* nothing terminal changes */
	decide(me);
	head = newHead[me];
	fresh[0] = false; fresh[1] = false; fresh[2] = false;
	n = 0;
	do
	:: n < HINTS -> early[n] = false; n++
	:: else -> break
	od;
	n = 0;
	assert(job != LIVE || SHOWS);
	check()
}

#define ROOM    ANY(FREEHINT)   /* else a hint that is of no use has to go first */
#define ANY(F)  (F(0) || F(1) || F(2) || F(3))
#define PICK(F) if :: F(0) -> n = 0 :: F(1) -> n = 1 :: F(2) -> n = 2 :: F(3) -> n = 3 fi
/* A hint at or beyond its rev that no queued item names, or of a job that is gone. */
#define USELESS(h) (hint[h] && !NAMES(h) && ((job == LIVE && (!early[h] || MUTANT == DELETE_EARLY)) || \
	job == TOMBSTONE || (job == PURGED && !first[h]) || (job == NEVER && MUTANT == NO_TOMBSTONE)))
#define EARLY(h)   (ALIVE && hint[h] && early[h])
#define ORPHAN(h)  ((job == NEVER || job == PURGED) && hint[h] && first[h])
#define LEADS(h)   (hint[h] && (pairOf[h] == CURRENT || MUTANT == CLAIM_OTHER_ATTEMPT))

/* Load, decide what comes next, and write what has to be there before the commit. */
inline load(me) {
	if
	/* The command, or its repeat. */
	:: job == NEVER && accepts > 0 && ROOM ->
		accepts--; kind[me] = ACCEPT; slot = true; pair = 0;
		newHead[me] = true                        /* for a SENT row: the safety net */

	/* A worker claims what a hint leads to. */
	:: ALIVE && (INQUEUE || (outbox == PENDING && MUTANT == CLAIM_PENDING)) && ANY(LEADS) && MAYHAND ->
		PICK(LEADS); assert(pairOf[n] == CURRENT); n = 0;            /* the pair is current */
		kind[me] = CLAIM; assert(scope != SETTLED);
		newHead[me] = (head || MUTANT != CLAIM_WITHOUT_TIMER)

	/* The worker that has the current pair reports, by the queue's verbs or by callbacks. */
	:: ALIVE && state == AWAITING_ACK && lease -> kind[me] = ACK; newHead[me] = head
	:: ALIVE && (HELD || (state == FAILED_RETRY && why == BY_DEADLINE)) && ROOM ->
		kind[me] = RESULT;
		if
		:: LASTSTEP || ctl == CANCELLING -> newHead[me] = true
		:: !LASTSTEP && ctl == RUN -> newHead[me] = head; pair = (step + 1) * ATTEMPTS
		:: else
		fi
	:: ALIVE && HELD ->
		kind[me] = RETRY;
		if
		:: ctl == PAUSING && !FINAL
		:: else -> newHead[me] = true
		fi

	/* The entry that HEAD names is due. */
	:: ALIVE && head && outbox == PENDING && state == DISPATCHING && ROOM && MAYPUBLISH && MUTANT != HELD_FOR_EVER ->
		kind[me] = MARK; pair = CURRENT
	:: ALIVE && head && INQUEUE -> kind[me] = DROP; newHint[me] = ready
	:: ALIVE && head && HELD ->
		kind[me] = DEADLINE;
		if
		:: ctl == PAUSING && !FINAL
		:: else -> newHead[me] = true
		fi
	:: ALIVE && head && state == FAILED_RETRY && ROOM ->
		kind[me] = REDISPATCH; pair = CURRENT + 1
	:: job == LIVE && ctl == ENDED && head -> slot = false; head = false; goto endIdle

	/* Callers and operators. */
	:: ALIVE && ctl == RUN && pauses > 0 && (HELD || !FINAL) ->
		pauses--; kind[me] = PAUSE;
		if
		:: HELD -> newHead[me] = head
		:: else
		fi
	:: ALIVE && (ctl == PAUSING || ctl == PAUSED) && ROOM ->
		kind[me] = RESUME;
		if
		:: ctl == PAUSING -> newHead[me] = head
		:: ctl == PAUSED && state == WAITING -> pair = CURRENT
		:: ctl == PAUSED && state != WAITING -> pair = CURRENT + 1
		fi
	:: ALIVE && ctl != CANCELLING && cancels > 0 ->
		cancels--; kind[me] = CANCEL;
		if
		:: HELD -> newHead[me] = head
		:: else -> newHead[me] = true
		fi

	/* Clean-up by the sweeper, claimers and the reconciler. */
	:: ANY(USELESS) -> PICK(USELESS); kind[me] = DISCARD; oldHint[me] = n; n = 0
	:: raises > 0 && ANY(EARLY) ->
		raises--; kind[me] = RAISE; newHead[me] = head;
		if
		:: MUTANT == RAISE_BLIND -> PICK(EARLY); oldHint[me] = n; n = 0
		:: else
		fi
	:: (job == NEVER && slot) || ANY(ORPHAN) ->
		kind[me] = ENTOMB;
		if
		:: MUTANT == TOMBSTONE_BLIND && ANY(ORPHAN) -> PICK(ORPHAN); oldHint[me] = n; n = 0
		:: else
		fi
	:: job == TOMBSTONE && slot -> slot = false; goto endIdle
	:: job == LIVE && ctl == ENDED && !slot && !head && kind[1 - me] == IDLE && kind[LATE] == IDLE ->
		n = 0;
		do
		:: n < HINTS && kept[n] && MUTANT != PURGE_LEAVES_HINT -> hint[n] = false; n++
		:: n < HINTS && !(kept[n] && MUTANT != PURGE_LEAVES_HINT) -> n++
		:: else -> break
		od;
		job = PURGED; n = 0;
		do
		:: n < HINTS -> assert(!hint[n] || !named[n]); n++
		:: else -> break
		od;
		n = 0; goto endIdle
	fi;
	fresh[me] = true;
	if
	:: pair != NOPAIR -> makeRow(me, pair)
	:: else
	fi;
	pair = NOPAIR
}

proctype process(byte me) {
	byte n;
	byte pair = NOPAIR;
	bool wrote, last, row;
endIdle:
	atomic {
		load(me);
		if
		:: crashes > 0 && kind[me] != DROP && newHint[me] != NOHINT ->
			crashEarly(me); goto done
		:: wrote = false
		fi;
		if
		:: kind[me] == DISCARD -> goto post
		:: else
		fi
	}
	if
	:: kind[me] == DROP ->
		atomic {
			if
			:: !hint[newHint[me]] ->                  /* it is missing, or was claimed since */
				assert(MUTANT != REPAIR_COUNTS);
				hint[newHint[me]] = true; named[newHint[me]] = false; open[me] = true
			:: else
			fi
		}
	:: else
	fi;
	atomic {
		if
		:: crashes > 0 && kind[LATE] == IDLE && fresh[me] -> crashSent(me); goto done
		:: !fresh[me] && MUTANT != NO_CAS ->
			if
			:: MUTANT == RAISE_BLIND && kind[me] == RAISE
			:: MUTANT == TOMBSTONE_BLIND && kind[me] == ENTOMB
			:: else -> goto done
			fi
		:: fresh[me] || MUTANT == NO_CAS ->
			commit(me);
			last = (job == LIVE && ctl == ENDED);
			if
			:: oldHint[me] == NOHINT && !last && MUTANT != HINT_AFTER ->
				goto done
			:: else
			fi
		fi
	}
post:
	atomic {
		if
		:: crashes > 0 && kind[me] != DISCARD ->
			crashes--;
			if
			:: oldHint[me] != NOHINT -> hint[oldHint[me]] = false
			:: last -> slot = false
			:: true
			fi;
			goto done
		:: true
		fi;
		if
		:: MUTANT == HINT_AFTER && newHint[me] != NOHINT -> hint[newHint[me]] = true
		:: else
		fi;
		if
		:: oldHint[me] != NOHINT -> hint[oldHint[me]] = false
		:: else
		fi;
		if
		:: last -> slot = false
		:: else
		fi;
		check();
		if
		:: !last -> goto done
		:: else
		fi
	}
	atomic {
		if
		:: crashes > 0 -> crashes--
		:: true -> head = false                         /* its entry stood for the end */
		fi;
done:
		forget(me); wrote = false; last = false;
		goto endIdle
	}
}

/* What a crashed process had sent arrives. */
active proctype network() {
	byte n;
	bool row;
endIdle:
	do
	:: atomic { kind[LATE] == PUT -> hint[newHint[LATE]] = true; early[newHint[LATE]] = fresh[LATE]; forget(LATE) }
	:: atomic {
		kind[LATE] != IDLE && kind[LATE] != PUT ->
		if
		:: fresh[LATE] -> commit(LATE)
		:: else
		fi;
		forget(LATE)
	   }
	od
}

/* An operator pauses a scope that covers the job, and resumes it. */
active proctype operator() {
endIdle:
	atomic { SCOPES > 0 && (job == NEVER || ALIVE) -> scope = NEW }
	scope = SETTLED;
	scope = RESUMED
}

init {
	atomic { run process(0); run process(1) };
	timeout -> assert(QUIET)
}
