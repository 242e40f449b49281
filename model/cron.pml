/*
 * One schedule with two occurrences, which replicas fire and an operator edits or pauses, small
 * enough to be checked in full. docs/understand/model.md maps each step to the code and says what
 * is left out.
 *
 * A replica may take any occurrence that is due to be on time, late (missed), or refused, since its
 * clock, the line and the limits decide that. CRASHES replicas stop between two writes and start
 * again. LATES commits of jobs time out, and arrive later or never. PURGES jobs end and are purged.
 *
 * MUTANT breaks one rule, and must then be caught: see check.sh.
 */

#ifndef REPLICAS
#define REPLICAS 2
#endif
#ifndef CRASHES
#define CRASHES 0
#endif
#ifndef LATES
#define LATES 0
#endif
#ifndef PURGES
#define PURGES 0
#endif
#ifndef EDITS
#define EDITS 0
#endif
#ifndef MUTANT
#define MUTANT 0
#endif

#define HEAD_FIRST       1   /* HEAD counts an occurrence as decided before its command is accepted */
#define VERSION_KEY      2   /* each version has a claim of its own */
#define REFUSAL_RELEASES 3   /* a refusal deletes the claim */
#define OUTCOME_BLIND    4   /* an outcome is written whatever the claim has become */
#define NO_SETTLE        5   /* an edit does not decide what is due */
#define NO_TOMBSTONE     6   /* an outcome replaces a claim whose accept may still commit */
#define PURGE_FREES      7   /* a purge deletes the claim */
#define OTHERS_FREE      8   /* the entry of an accept whose job is gone deletes the claim that names the job */

#ifndef N
#define N 2                  /* occurrences */
#endif
#define IDS 6                /* job ids */

mtype = { none, claimed, fired, refused, missed }
mtype = { absent, there, tomb }

/* The row of an occurrence, by its claim: one for each occurrence, and with VERSION_KEY another for
 * the second version. */
#define ROWS (N * 2)
#if MUTANT == VERSION_KEY
#define ROW(o, v) ((o) + N * (v))
#else
#define ROW(o, v) (o)
#endif

typedef Row { mtype outcome = none; byte id; byte version; bool purged }
Row row[ROWS];
mtype job[IDS] = absent;
byte ids = 1;                /* the next unused id; 0 is none */
byte made[N];                /* jobs that were ever committed */
byte last;                   /* HEAD: occurrences before it are decided */
byte rev;                    /* HEAD: its version */
byte version;                /* HEAD: of the definition */
byte now;                    /* occurrences before it are due */
byte crashes = CRASHES, lates = LATES, purges = PURGES, edits = EDITS;
byte lateJob, lateOf;        /* a commit that may still arrive */
bool decided[N];             /* an outcome other than a claim was seen by HEAD */

/* The commit of a job: it is refused by a tombstone, and repeats itself. */
inline commitJob(i, o) {
	if
	:: job[i] == absent ->
		job[i] = there;
		made[o]++;
		assert(made[o] == 1);                                     /* S1 */
		assert(row[ROW(o, 0)].outcome != refused && row[ROW(o, 0)].outcome != missed)  /* S6 */
	:: else
	fi
}

/* settle gives the occurrence an outcome without a job, unless it has one or its job exists. */
inline settle(o, v, want) {
	do
	:: atomic { found = row[ROW(o, v)].outcome; id = row[ROW(o, v)].id; seen = row[ROW(o, v)].version; gone = row[ROW(o, v)].purged }
		if
		:: found == none ->
			atomic {
				if
				:: MUTANT == OUTCOME_BLIND || row[ROW(o, v)].outcome == none ->
					row[ROW(o, v)].outcome = want; row[ROW(o, v)].id = 0; row[ROW(o, v)].version++;
					assert(made[o] == 0); break
				:: else
				fi
			}
		:: found == claimed && gone -> mark(o, v); break
		:: found == claimed && !gone ->
			atomic {
				if
				:: MUTANT != NO_TOMBSTONE && job[id] == absent -> job[id] = tomb
				:: else
				fi
			}
			if
			:: job[id] == there -> mark(o, v); break
			:: else ->
				atomic {
					if
					:: MUTANT == OUTCOME_BLIND || row[ROW(o, v)].version == seen ->
						if
						:: MUTANT == REFUSAL_RELEASES && want == refused -> row[ROW(o, v)].outcome = none
						:: else -> row[ROW(o, v)].outcome = want; assert(made[o] == 0)  /* S6 */
						fi
						row[ROW(o, v)].id = 0; row[ROW(o, v)].version++; break
					:: else
					fi
				}
			fi
		:: else -> break
		fi
	od
}

/* mark says that the job of a claim exists. */
inline mark(o, v) {
	atomic {
		if
		:: row[ROW(o, v)].outcome == claimed && job[row[ROW(o, v)].id] != absent ->
			row[ROW(o, v)].outcome = fired; row[ROW(o, v)].version++
		:: else
		fi
	}
}

/* fire accepts the command under the claim. */
inline fire(o, v) {
	do
	:: atomic { found = row[ROW(o, v)].outcome; id = row[ROW(o, v)].id; seen = row[ROW(o, v)].version; gone = row[ROW(o, v)].purged }
		if
		:: found != none && found != claimed -> break
		:: found == claimed && gone -> mark(o, v); break
		:: found == claimed && !gone && job[id] == there -> mark(o, v); break
		:: else ->
			atomic {
				if
				:: found == claimed && job[id] != tomb            /* the id of an accept that may be under way */
				:: (found == none || job[id] == tomb) && ids < IDS -> id = ids; ids++
				:: else -> goto done                              /* out of ids: the run is long enough */
				fi
			}
			atomic {
				if
				:: row[ROW(o, v)].version == seen ->
					row[ROW(o, v)].outcome = claimed; row[ROW(o, v)].id = id; row[ROW(o, v)].version++
				:: else -> skip; goto again
				fi
			}
			if
			:: atomic { crashes > 0 -> crashes--; goto restart }
			:: atomic { lates > 0 && lateJob == 0 -> lates--; lateJob = id; lateOf = o; goto restart }
			:: settle(o, v, refused); break
			:: atomic { commitJob(id, o) }
				if
				:: atomic { crashes > 0 -> crashes--; goto restart }
				:: true
				fi
				if
				:: job[id] == there -> mark(o, v); break
				:: else                                           /* a tombstone: with a new id */
				fi
			fi
again:
		fi
	od
}

/* Each occurrence that counts as decided has an outcome. */
inline checkHead(upTo) {
	n = 0;
	do
	:: n < upTo ->
		assert((row[n].outcome != none && row[n].outcome != claimed) || decided[n] ||
			(MUTANT == VERSION_KEY && row[n + N].outcome != none));     /* S3 */
		decided[n] = true; n++
	:: else -> break
	od
}

active [REPLICAS] proctype replica() {
	mtype found; byte id, seen, n, mine, at, v; bool gone;
restart:
	do
	:: atomic { last < N && last < now -> mine = rev; at = last; v = version }
		if
		:: MUTANT == HEAD_FIRST ->
			atomic {
				if
				:: rev == mine -> rev++; mine = rev; last = at + 1; checkHead(last)
				:: else -> goto restart
				fi
			}
		:: else
		fi
		if
		:: fire(at, v)
		:: settle(at, v, missed)
		fi
		if
		:: atomic { crashes > 0 -> crashes--; goto restart }
		:: true
		fi
		atomic {
			if
			:: rev == mine && last == at -> rev++; last = at + 1; checkHead(last)
			:: else
			fi
			found = none; id = 0; seen = 0; mine = 0; at = 0; v = 0; n = 0; gone = false
		}
	:: last == N -> break
	od;
done:
	skip
}

/* An operator changes the definition, or pauses and resumes: what is due is decided first, and what
 * comes next is what is not due yet. */
active proctype operator() {
	mtype found; byte id, seen, n, mine, at, v, bound; bool gone;
restart:
	do
	:: atomic { edits > 0 && last < N -> mine = rev; at = last; v = version; bound = now }
		do
		:: MUTANT != NO_SETTLE && at < bound ->
			if
			:: fire(at, v)
			:: settle(at, v, missed)
			fi
			at++
		:: else -> break
		od;
		atomic {
			if
			:: rev == mine ->
				rev++; edits--; version = 1;
				if
				:: bound > last -> last = bound; checkHead(last)
				:: else
				fi
			:: else
			fi
			found = none; id = 0; seen = 0; mine = 0; at = 0; v = 0; n = 0; gone = false; bound = 0
		}
	:: edits == 0 || last == N -> break
	od;
done:
	skip
}

/* Time, the commit that is late, the purge, and the entry of an accept: it makes a lost one impossible. */
active proctype world() {
	byte n;
end:	/* Replicas may have run out of ids. */
	do
	:: atomic { now < N -> now++ }
	:: atomic { lateJob != 0 -> commitJob(lateJob, lateOf); lateJob = 0; lateOf = 0 }
	:: atomic { row[0].outcome == claimed && job[row[0].id] == absent -> job[row[0].id] = tomb }
	:: atomic { MUTANT == OTHERS_FREE && row[0].id != 0 && job[row[0].id] == tomb ->
		row[0].outcome = none; row[0].id = 0; row[0].purged = false; row[0].version++ }
	:: atomic { purges > 0 && row[0].id != 0 && job[row[0].id] == there ->   /* the mark and the tombstone */
		purges--; n = row[0].id;
		if
		:: MUTANT == PURGE_FREES -> row[0].outcome = none; row[0].id = 0
		:: else -> row[0].purged = true
		fi
		row[0].version++; job[n] = tomb; n = 0 }
	:: now == N && lateJob == 0 && last == N -> break
	od
}
