package sim_test

import (
	"bufio"
	"bytes"
	_ "embed"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lucius-project/lucius/internal/sim"
	"github.com/lucius-project/lucius/pkg/webhook"
)

// corpus holds the seeds that have found a defect.
//
//go:embed testdata/sim/seeds.txt
var corpus []byte

// TestSim runs the simulation with the corpus, and with further seeds that are the same in
// each run.
func TestSim(t *testing.T) {
	t.Parallel()
	if *oneSeed != 0 {
		one(t, *oneSeed)
		return
	}
	seeds := append(known(t), fresh()...)
	total := &totals{faults: map[sim.Fault]int{}, ended: map[string]int{}, waits: map[string]int{}, lists: map[int]int{}, sent: map[webhook.Outcome]int{}, begin: time.Now()}
	t.Cleanup(func() { t.Log(total) })
	var failed atomic.Bool
	for shard := range runtime.GOMAXPROCS(0) {
		t.Run(fmt.Sprint("shard", shard), func(t *testing.T) {
			t.Parallel()
			for i := shard; i < len(seeds) && !(*stopEarly && failed.Load()); i += runtime.GOMAXPROCS(0) {
				result := sim.Run(t, seeds[i], nil)
				total.add(&result)
				judge(t, &result)
				failed.Store(failed.Load() || t.Failed())
			}
		})
	}
}

// one runs one seed, and logs its result.
func one(t *testing.T, seed uint64) {
	t.Helper()
	result := sim.Run(t, seed, func(line string) {
		if *traceParts != "" && (*traceParts == "." || strings.Contains(line, *traceParts)) {
			t.Log(line)
		}
	})
	t.Logf("seed %d: %d calls in %s, hash %016x, faults %v, jobs %v",
		seed, result.Calls, result.Virtual, result.Hash, result.Faults, result.Ended)
	judge(t, &result)
}

// judge fails the test for a seed with violations, and logs how to run it again.
func judge(t *testing.T, result *sim.Result) {
	t.Helper()
	if len(result.Violations) > 0 {
		t.Errorf("seed %d:\n%s\n\nthe last steps:\n%s\n\nrun it again with\n\tgo test ./internal/sim -run Sim -v -sim.seed=%d -sim.trace=.",
			result.Seed, strings.Join(result.Violations, "\n"), strings.Join(result.Trace, "\n"), result.Seed)
	}
}

// known returns the seeds of the corpus.
func known(t *testing.T) []uint64 {
	t.Helper()
	var seeds []uint64
	lines := bufio.NewScanner(bytes.NewReader(corpus))
	for lines.Scan() {
		text, _, _ := strings.Cut(lines.Text(), "#")
		if text = strings.TrimSpace(text); text == "" {
			continue
		}
		seed, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatalf("seeds.txt: %v", err)
		}
		seeds = append(seeds, seed)
	}
	return seeds
}

// fresh returns the seeds that the flags select.
func fresh() []uint64 {
	count := *seedCount
	if testing.Short() {
		count = min(count, 40)
	}
	seeds := make([]uint64, count)
	for i := range seeds {
		n := *firstSeed + uint64(i)
		seeds[i] = n
		if n/32%2 == 1 { // Each kind of scenario has both.
			seeds[i] |= sim.Ordered
		}
		if n/64%4 == 1 {
			seeds[i] |= sim.Scheduled
		}
		if n/32%3 == 1 {
			seeds[i] |= sim.Announced
		}
	}
	return seeds
}

// totals sums up many simulations.
type totals struct {
	mu      sync.Mutex
	begin   time.Time
	seeds   int
	calls   int
	virtual time.Duration
	faults  map[sim.Fault]int
	ended   map[string]int
	waits   map[string]int
	lists   map[int]int
	sent    map[webhook.Outcome]int
}

func (s *totals) add(result *sim.Result) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seeds++
	s.calls += result.Calls
	s.virtual += result.Virtual
	for fault, n := range result.Faults {
		s.faults[fault] += n
	}
	for state, n := range result.Ended {
		s.ended[state] += n
	}
	for reason, n := range result.Waits {
		s.waits[reason] += n
	}
	for outcome, n := range result.Webhooks {
		s.sent[outcome] += n
	}
	for jobs, n := range result.Lists {
		s.lists[jobs] += n
	}
}

// String summarizes the run.
func (s *totals) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	took := time.Since(s.begin)
	var b strings.Builder
	fmt.Fprintf(&b, "%d seeds in %s (%.0f a second), %d calls, %.1f virtual hours\n",
		s.seeds, took.Round(time.Millisecond), float64(s.seeds)/took.Seconds(), s.calls, s.virtual.Hours())
	sum := 0
	for _, fault := range slices.Sorted(maps.Keys(s.faults)) {
		fmt.Fprintf(&b, "  %-13s %d\n", fault, s.faults[fault])
		sum += s.faults[fault]
	}
	fmt.Fprintf(&b, "  %-13s %d\njobs:", "faults", sum)
	for _, state := range slices.Sorted(maps.Keys(s.ended)) {
		fmt.Fprintf(&b, " %s %d", state, s.ended[state])
	}
	b.WriteString("\nwaits:")
	for _, reason := range slices.Sorted(maps.Keys(s.waits)) {
		fmt.Fprintf(&b, " %s %d", reason, s.waits[reason])
	}
	b.WriteString("\nwebhooks:")
	for _, outcome := range slices.Sorted(maps.Keys(s.sent)) {
		fmt.Fprintf(&b, " %s %d", outcome, s.sent[outcome])
	}
	b.WriteString("\nlists with so many jobs:")
	for _, jobs := range slices.Sorted(maps.Keys(s.lists)) {
		fmt.Fprintf(&b, " %d: %d", jobs, s.lists[jobs])
	}
	return b.String()
}
