#!/usr/bin/env bash
# Checks outbox.pml in full, and each of its mutants, which must fail. Needs a C
# compiler; installs spin where it is missing and this may be done. A run that was
# cut short is a failure: it proves nothing.
set -euo pipefail
model=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/outbox.pml

if ! command -v spin >/dev/null; then
    echo "spin is missing: installing it" >&2
    apt-get install -y --no-install-recommends spin >/dev/null ||
        { echo "install spin (the Debian package has that name), then run this again" >&2; exit 2; }
fi

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
failed=0

# check <what> <pass|safety|liveness> <live|safe> <switches>
#
# The second is what has to come out: no error, an assertion, or a cycle in which
# the job never ends.
check() {
    local what=$1 want=$2 kind=$3 switches=$4 got out
    local build=(-DSAFETY -DNOCLAIM) run=()
    if [[ $kind == live ]]; then
        build=(-DNFAIR=4) run=(-a -f -N ends)
        switches+=" -DPASSES"
    fi
    rm -f pan*
    # shellcheck disable=SC2086 # Switches are words.
    spin -a $switches "$model" >spin.log 2>&1 || { cat spin.log >&2; exit 2; }
    "${CC:-cc}" -O2 -w -DCOLLAPSE -DVECTORSZ=512 -DMEMLIM=3000 "${build[@]}" -o pan pan.c
    out=$(./pan -m1000000 "${run[@]}" 2>&1) || true
    case $out in
    *"max search depth too small"* | *"out of memory"* | *"Search not completed"*"errors: 0"*) got=truncated ;;
    *"assertion violated"*) got=safety ;;
    *"acceptance cycle"*) got=liveness ;;
    *"errors: 0"*) got=pass ;;
    *) got="no result" ;;
    esac
    printf '%-42s %-9s %-9s %10s states %7ss\n' "$what" "$want" "$got" \
        "$(sed -n 's/^ *\([0-9]*\) states, stored.*/\1/p' <<<"$out")" \
        "$(sed -n 's/^pan: elapsed time \([0-9.]*\) seconds/\1/p' <<<"$out")"
    if [[ $got != "$want" ]]; then
        failed=1
        echo "  see: ${out}" | head -5
    fi
}

printf '%-42s %-9s %-9s\n' "" expected got
one="-DSTEPS=1 -DATTEMPTS=2"
two="-DSTEPS=2 -DATTEMPTS=1"
check "1 step, 2 attempts, 2 crashes" pass safe "$one -DCRASHES=2"
check "2 steps, 1 attempt, 2 crashes" pass safe "$two -DCRASHES=2"
check "2 steps, 2 attempts, no crash" pass safe "-DSTEPS=2 -DATTEMPTS=2 -DCRASHES=0"
check "1 step, 2 attempts, 1 crash: it ends" pass live "$one -DCRASHES=1"
check "2 steps, 1 attempt, 1 crash: it ends" pass live "$two -DCRASHES=1"

number=0
for mutant in NO_CAS MARK_FIRST ENTRY_AFTER DELETE_EARLY NO_LEASE SAME_LEASE NO_END_ENTRY ENTRY_BEFORE_WORK \
    NO_NEW_ENTRY REWRITE_TERMINAL; do
    number=$((number + 1))
    check "mutant $mutant" safety safe "$one -DMUTANT=$number"
done
check "mutant HOT_ONLY: it ends" liveness live "$one -DMUTANT=11"
check "mutant NO_DEADLINES: it ends" liveness live "$one -DMUTANT=12"

exit "$failed"
