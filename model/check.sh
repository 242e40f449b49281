#!/usr/bin/env bash
# Checks the models in full, and each of their mutants, which must fail. Needs a C
# compiler; installs spin if it is missing and this may be done. A run that was cut
# short is a failure: it proves nothing.
set -euo pipefail
models=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

if ! command -v spin >/dev/null; then
    echo "spin is missing: installing it" >&2
    { apt-get update && apt-get install -y --no-install-recommends spin; } >/dev/null ||
        { echo "install spin (the Debian package has that name), then run this again" >&2; exit 2; }
fi

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
runs=0

# check <model> <what> <pass|safety|liveness> <safe|live|finite> <switches>
#
# Two checks run side by side. The third argument is what has to come out: no error,
# an assertion, or a cycle. A live check looks for a run in which the job never ends
# although no process is starved, a finite one for any run that goes on for ever.
check() {
    while (($(jobs -rp | wc -l) >= 2)); do wait -n || true; done
    runs=$((runs + 1))
    mkdir "$dir/$runs"
    (cd "$dir/$runs" && verify "$@") || touch "$dir/failed" &
}

verify() {
    local model=$1 what=$2 want=$3 kind=$4 switches=$5 got out
    local build=(-DSAFETY -DNOCLAIM) run=() optimise=-O2
    [[ $want == pass ]] || optimise=-O0 # A mutant fails soon: it takes longer to compile.
    case $kind in
    live)
        build=(-DNFAIR=4) run=(-a -f -N ends)
        switches+=" -DPASSES"
        ;;
    finite) build=(-DNP -DNOCLAIM) run=(-l) ;;
    esac
    # shellcheck disable=SC2086 # Switches are words.
    spin -a $switches "$models/$model.pml" >spin.log 2>&1 || { cat spin.log >&2; return 1; }
    "${CC:-cc}" "$optimise" -w -DCOLLAPSE -DVECTORSZ=512 -DMEMLIM=3000 "${build[@]}" -o pan pan.c
    out=$(./pan -m1000000 "${run[@]}" 2>&1) || true
    case $out in
    *"max search depth too small"* | *"out of memory"* | *"Search not completed"*"errors: 0"*) got=truncated ;;
    *"assertion violated"*) got=safety ;;
    *"acceptance cycle"* | *"non-progress cycle"*"errors: 1"*) got=liveness ;;
    *"errors: 0"*) got=pass ;;
    *) got="no result" ;;
    esac
    printf '%-7s %-44s %-9s %-9s %9s states %6ss\n' "$model" "$what" "$want" "$got" \
        "$(sed -n 's/^ *\([0-9]*\) states, stored.*/\1/p' <<<"$out")" \
        "$(sed -n 's/^pan: elapsed time \([0-9.]*\) seconds/\1/p' <<<"$out")"
    if [[ $got != "$want" ]]; then
        echo "  see: ${out}" | head -5
        return 1
    fi
}

printf '%-7s %-44s %-9s %-9s\n' "" "" expected got

one="-DSTEPS=1 -DATTEMPTS=2"
two="-DSTEPS=2 -DATTEMPTS=1"
check outbox "1 step, 2 attempts, 2 crashes" pass safe "$one -DCRASHES=2"
check outbox "2 steps, 1 attempt, 2 crashes" pass safe "$two -DCRASHES=2"
check outbox "2 steps, 2 attempts, no crash" pass safe "-DSTEPS=2 -DATTEMPTS=2 -DCRASHES=0"
check outbox "2 steps, 1 attempt, 1 crash, 1 grace" pass safe "$two -DCRASHES=1 -DRAISES=1"
check outbox "1 step, 2 attempts, 1 crash: it ends" pass live "$one -DCRASHES=1"
check outbox "2 steps, 1 attempt, 1 crash: it ends" pass live "$two -DCRASHES=1"

number=0
for mutant in NO_CAS MARK_FIRST ENTRY_AFTER DELETE_EARLY NO_LEASE SAME_LEASE NO_END_ENTRY ENTRY_BEFORE_WORK \
    NO_NEW_ENTRY REWRITE_TERMINAL; do
    number=$((number + 1))
    check outbox "mutant $mutant" safety safe "$one -DMUTANT=$number"
done
check outbox "mutant HOT_ONLY: it ends" liveness live "$one -DMUTANT=11"
check outbox "mutant NO_DEADLINES: it ends" liveness live "$one -DMUTANT=12"
check outbox "mutant RAISE_BLIND" safety safe "$one -DRAISES=1 -DMUTANT=13"

check queue "1 step, 2 attempts, 1 crash" pass safe "$one -DCRASHES=1"
check queue "2 steps, 1 attempt, 2 accepts" pass safe "$two -DCRASHES=0 -DACCEPTS=2"
check queue "1 step, 2 attempts, paused scope" pass safe "$one -DCRASHES=0 -DSCOPES=1"
check queue "2 steps, 1 attempt, paused scope" pass safe "$two -DCRASHES=0 -DSCOPES=1"
check queue "1 step, 2 attempts, pause and cancel" pass safe "$one -DCRASHES=0 -DPAUSES=1 -DCANCELS=1"
check queue "1 step, 2 attempts: every run ends" pass finite "$one -DCRASHES=0 -DCANCELS=1"

number=0
for mutant in NO_CAS KEY_WITHOUT_REV CLAIM_PENDING CLAIM_OTHER_ATTEMPT HINT_AFTER DELETE_EARLY RAISE_BLIND \
    NO_TOMBSTONE TOMBSTONE_BLIND PURGE_LEAVES_HINT REQUEUE_LEAVES_HINT DEADLINE_WITHOUT_ITEM \
    CALLBACK_WITHOUT_ITEM STALE_PUBLISH STALE_CLAIM HELD_FOR_EVER CLAIM_WITHOUT_TIMER REPAIR_COUNTS SAME_PAIR; do
    number=$((number + 1))
    instance="-DCRASHES=1"
    case $mutant in CLAIM_PENDING | STALE_* | HELD_FOR_EVER) instance="-DCRASHES=0 -DSCOPES=1" ;; esac
    check queue "mutant $mutant" safety safe "$one $instance -DMUTANT=$number"
done

check claims "3 requests for 1 item, 1 crash" pass safe "-DREQUESTS=3"
check claims "2 requests for 2 items, 2 crashes" pass safe "-DMAX=2 -DCRASHES=2"

number=0
for mutant in MEMORY_AFTER REPLACE_QUEUED REPLACE_ENDED REPLACE_BLIND; do
    number=$((number + 1))
    check claims "mutant $mutant" safety safe "-DMUTANT=$number"
done

check cron "2 replicas, 2 occurrences" pass safe ""
check cron "2 replicas, 1 crash" pass safe "-DCRASHES=1"
check cron "2 replicas, 1 purge" pass safe "-DPURGES=1"

check cron "2 replicas, 1 late commit" pass safe "-DLATES=1"
check cron "2 replicas, 1 occurrence, 1 edit" pass safe "-DN=1 -DEDITS=1"

for mutant in "1 HEAD_FIRST" "2 VERSION_KEY -DN=1 -DEDITS=1" "3 REFUSAL_RELEASES" "4 OUTCOME_BLIND" "5 NO_SETTLE -DEDITS=1" "6 NO_TOMBSTONE -DLATES=1" \
    "7 PURGE_FREES -DPURGES=1" "8 OTHERS_FREE -DPURGES=1"; do
    read -r number name instance <<<"$mutant"
    check cron "mutant $name" safety safe "$instance -DMUTANT=$number"
done

check line "3 jobs, 2 crashes" pass safe "-DCRASHES=2"
check line "3 jobs, a look in two pages" pass safe "-DCRASHES=0 -DPAGES=2"
check line "3 jobs, 1 request repeated" pass safe "-DCRASHES=0 -DREPEATS=1"
check line "3 jobs, 1 cancel" pass safe "-DCRASHES=0 -DCANCELS=1"
check line "3 jobs, 1 date, 1 pause" pass safe "-DCRASHES=0 -DDATES=1 -DPAUSES=1"
check line "3 jobs, 1 failure, rerun and release" pass safe "-DCRASHES=0 -DFAILURES=1 -DRERUNS=1 -DRELEASES=1"
check line "3 jobs, 2 failures, 2 reruns, 1 crash" pass safe "-DCRASHES=1 -DFAILURES=2 -DRERUNS=2"
check line "3 jobs, 2 reruns, 1 cancel, 1 crash" pass safe "-DCRASHES=1 -DFAILURES=1 -DRERUNS=2 -DCANCELS=1"
operator="-DCOMMANDS=2 -DFAILURES=1 -DRERUNS=1 -DRELEASES=1"
check line "rerun, release and cancel, 1 crash" pass safe "$operator -DCANCELS=1 -DCRASHES=1"
check line "rerun and release, 1 late batch" pass safe "$operator -DLATES=1 -DCRASHES=0"
check line "2 jobs, 1 date, 1 pause, 1 crash" pass safe "-DCOMMANDS=2 -DDATES=1 -DPAUSES=1 -DCRASHES=1"
check line "2 jobs, 1 late batch, 1 late commit" pass safe "-DCOMMANDS=2 -DLATES=1 -DLATE_COMMITS=1 -DCRASHES=0"
check line "2 jobs, 1 late batch, 1 request repeated" pass safe "-DCOMMANDS=2 -DLATES=1 -DREPEATS=1 -DCRASHES=0"
check line "3 jobs: every run ends" pass finite "-DCRASHES=0"

number=0
for mutant in REMOVE_BLIND SAME_EPOCH NO_NEXT TURN_ANY_PLACE TURN_PARKED NO_LOOK_END NO_LOOK_ACCEPT NO_LOOK_RESUME \
    NO_LOOK_DATE ENTRY_BEFORE_LOOK NO_TOMBSTONE LOST_RERUN_GONE TAKE_BLIND RELEASE_IN_JOB TAKE_RELEASED PLACE_AFTER \
    RELEASE_ENTRY_EARLY CANCEL_UNBLOCKS; do
    number=$((number + 1))
    instance="-DCRASHES=0"
    case $mutant in
    SAME_EPOCH | RELEASE_ENTRY_EARLY) instance+=" -DLATES=1 -DFAILURES=1 -DRELEASES=1" ;;
    NO_NEXT) instance+=" -DPAGES=2" ;;
    TURN_ANY_PLACE) instance+=" -DREPEATS=1" ;;
    TURN_PARKED | NO_LOOK_DATE) instance+=" -DDATES=1" ;;
    NO_LOOK_RESUME) instance+=" -DPAUSES=1" ;;
    ENTRY_BEFORE_LOOK | NO_TOMBSTONE) instance="-DCRASHES=1" ;;
    LOST_RERUN_GONE) instance="-DCRASHES=1 -DFAILURES=1 -DRERUNS=1" ;;
    TAKE_BLIND) instance+=" -DFAILURES=1 -DRERUNS=2" ;;
    RELEASE_IN_JOB | TAKE_RELEASED) instance+=" -DFAILURES=1 -DRERUNS=1 -DRELEASES=1" ;;
    CANCEL_UNBLOCKS) instance+=" -DFAILURES=1 -DRERUNS=1 -DCANCELS=1" ;;
    esac
    check line "mutant $mutant" safety safe "$instance -DMUTANT=$number"
done

check limit "2 processes" pass safe ""
check limit "2 processes, 1 late write" pass safe "-DEND=5 -DLATES=1"
check limit "2 processes, 1 crash" pass safe "-DCRASHES=1"

number=0
for mutant in SPAN_WITHOUT_LIFE SPAN_WITHOUT_SKEW LIFE_AFTER_WRITE WRITE_BLIND USE_UNCHECKED USE_UNKNOWN; do
    number=$((number + 1))
    check limit "mutant $mutant" safety safe "-DLATES=1 -DMUTANT=$number"
done

check run "2 processes, 2 items, 1 slot, 1 crash" pass safe "-DCRASHES=1"
check run "2 processes, 2 items, 1 late write" pass safe "-DLATES=1"
check run "2 processes, 2 items, 2 slots" pass safe "-DSLOTS=2 -DREVS=4"

number=0
for mutant in ROW_AFTER SAME_ROW ADOPT FREE_FIRST FREE_BLIND JUDGE_BLIND DELETE_EARLY RAISE_BLIND; do
    number=$((number + 1))
    check run "mutant $mutant" safety safe "-DMUTANT=$number"
done

wait
[[ ! -e $dir/failed ]]
