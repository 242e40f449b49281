/*
 * The memory of one claim, small enough to be checked in full. A worker sends a
 * claim and repeats it under the same request id: REQUESTS requests run at once, on
 * any replica. docs/understand/model.md maps each step to the code.
 *
 * A request writes the claim row, which names its candidates, before it claims the
 * first of them. A request that finds the row answers from it. A candidate is an
 * attempt of an item: once it has left the queue it does not come back.
 *
 * MUTANT breaks one rule, and must then be caught: see check.sh.
 */

#ifndef REQUESTS
#define REQUESTS 2
#endif
#ifndef MAX
#define MAX 1            /* the most items that the claim may take */
#endif
#ifndef CRASHES
#define CRASHES 1
#endif
#ifndef MUTANT
#define MUTANT 0
#endif

#define MEMORY_AFTER    1   /* the row is written after the items are claimed */
#define REPLACE_QUEUED  2   /* the row is replaced while a candidate may still be claimed */
#define REPLACE_ENDED   3   /* the row is replaced once its candidates are done */
#define REPLACE_BLIND   4   /* the row is replaced whatever its version */

#define ITEMS 3
#define LATE  REQUESTS     /* stands for what a crashed process had sent */
#define BIT(i) (1 << (i))
#define HAS(set, i) (((set) & BIT(i)) != 0)

mtype = { QUEUED, OURS, LOST, ENDED };   /* LOST: claimed by another, removed or dispatched again */

mtype item[ITEMS] = QUEUED;
bool  row;                               /* the claim row is there */
byte  row_names;                         /* its candidates, a set */

bool  itemFresh[(REQUESTS + 1) * ITEMS]; /* the item has not changed since it was loaded */
bool  rowFresh[REQUESTS + 1];
bool  lateItem, lateRow;                 /* a commit that may still arrive: of item lateOne, or of the row */
byte  lateOne, lateNames;
byte  crashes = CRASHES;
byte  taken;                             /* how many items were ever claimed under the request */

#define FRESH(me, i) itemFresh[(me) * ITEMS + (i)]

/* A repeat finds each item that is held under the request. */
#define REMEMBERED(i) (item[i] != OURS || (row && HAS(row_names, i)))

inline change(i, to) {
	item[i] = to;
	n = 0;
	do
	:: n <= REQUESTS -> FRESH(n, i) = false; n++
	:: else -> break
	od;
	n = 0
}

inline take(i) {
	change(i, OURS);
	taken++;
	assert(taken <= MAX);
	assert(REMEMBERED(i))
}

inline writeRow(names) {
	row = true; row_names = names;
	n = 0;
	do
	:: n <= REQUESTS -> rowFresh[n] = false; n++
	:: else -> break
	od;
	n = 0;
	assert(REMEMBERED(0) && REMEMBERED(1) && REMEMBERED(2))
}

inline crash(me) {
	crashes--;
	n = 0;
	do
	:: n < ITEMS -> FRESH(me, n) = false; n++
	:: else -> break
	od;
	rowFresh[me] = false; n = 0; i = 0; names = 0; got = 0; open = false; used = false
}

/* One request. A crash ends it; a repeat is another one. */
proctype request(byte me) {
	byte i, n, names, got;
	bool open, used, found;
look:
	atomic {
		rowFresh[me] = true; found = row; names = (row -> row_names : 0); got = 0; open = false; used = false;
		if
		:: found -> goto answer
		:: else -> goto choose
		fi
	}
answer:                                  /* look at the candidates, claim one that is queued */
	atomic {
		i = 0;
		do
		:: i == ITEMS -> break
		:: i < ITEMS && !HAS(names, i) -> i++
		:: i < ITEMS && HAS(names, i) && item[i] == OURS -> got = got | BIT(i); i++
		:: i < ITEMS && HAS(names, i) && item[i] == ENDED -> used = true; i++
		:: i < ITEMS && HAS(names, i) && item[i] == LOST -> i++
		:: i < ITEMS && HAS(names, i) && item[i] == QUEUED -> open = true; i++    /* paused, or an error: not now */
		:: i < ITEMS && HAS(names, i) && item[i] == QUEUED -> FRESH(me, i) = true;
			goto claim
		od;
		goto reply
	}
claim:
	atomic {
		if
		:: crashes > 0 && !lateItem && FRESH(me, i) ->
			lateItem = true; lateOne = i; FRESH(LATE, i) = true; crash(me); goto over
		:: crashes > 0 -> crash(me); goto over
		:: FRESH(me, i) -> take(i)
		:: else
		fi;
		FRESH(me, i) = false;
		goto answer
	}
reply:
	atomic {
		if
		:: got != 0 -> goto over
		:: got == 0 && ((open && MUTANT != REPLACE_QUEUED) || (used && MUTANT != REPLACE_ENDED)) -> goto over
		:: else -> open = false; used = false; goto choose
		fi
	}
choose:                                  /* pick other items, and remember them first */
	atomic {
		names = 0; i = 0; n = 0;
		do
		:: i == ITEMS -> break
		:: i < ITEMS -> i++
		:: i < ITEMS && n < MAX && item[i] == QUEUED -> names = names | BIT(i); n++; i++
		od;
		i = 0; n = 0;
		if
		:: names == 0 || (row && names == row_names) -> goto over          /* nothing is ready */
		:: else
		fi;
		if
		:: MUTANT == MEMORY_AFTER -> goto claimFirst
		:: else
		fi
	}
	atomic {
		if
		:: crashes > 0 && !lateRow && rowFresh[me] -> lateRow = true; lateNames = names; rowFresh[LATE] = true; crash(me); goto over
		:: crashes > 0 -> crash(me); goto over
		:: rowFresh[me] || MUTANT == REPLACE_BLIND -> writeRow(names); goto answer
		:: !rowFresh[me] && MUTANT != REPLACE_BLIND -> goto look
		fi
	}
claimFirst:
	atomic {
		i = (HAS(names, 0) -> 0 : (HAS(names, 1) -> 1 : 2));
		if
		:: item[i] == QUEUED -> take(i)
		:: else
		fi;
		writeRow(names)
	}
over:
	atomic { i = 0; names = 0; got = 0; open = false; used = false; found = false }
}

/* What a crashed process had sent arrives. */
active proctype network() {
	byte n;
endIdle:
	do
	:: atomic { lateItem ->
		if
		:: FRESH(LATE, lateOne) -> take(lateOne)
		:: else
		fi;
		lateItem = false; FRESH(LATE, lateOne) = false; lateOne = 0 }
	:: atomic { lateRow ->
		if
		:: rowFresh[LATE] -> writeRow(lateNames)
		:: else
		fi;
		lateRow = false; rowFresh[LATE] = false; lateNames = 0 }
	od
}

/* Other claims, pauses, cancels, results and deadlines. */
active proctype others() {
	byte n;
endIdle:
	do
	:: atomic { item[0] == QUEUED -> change(0, LOST) }
	:: atomic { item[1] == QUEUED -> change(1, LOST) }
	:: atomic { item[2] == QUEUED -> change(2, LOST) }
	:: atomic { item[0] == OURS -> change(0, ENDED) }
	:: atomic { item[1] == OURS -> change(1, ENDED) }
	:: atomic { item[2] == OURS -> change(2, ENDED) }
	od
}

init {
	atomic {
		byte n = 0;
		do
		:: n < REQUESTS -> run request(n); n++
		:: else -> break
		od
	}
}
