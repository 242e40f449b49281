package bench

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// service does the steps of the benchmark's jobs.
const service = "bench"

// names are the words for the numbers of steps that can be measured.
var names = map[int]string{1: "one", 3: "three"}

// measurable reports whether there is a protocol with that many steps.
func measurable(steps int) bool { return names[steps] != "" }

// requestType returns the request_type of commands whose jobs have that many steps.
func requestType(steps int) string { return "bench." + names[steps] }

// title returns the heading for jobs with that many steps.
func title(steps int) string {
	if steps == 1 {
		return names[steps] + " step"
	}
	return names[steps] + " steps"
}

// stepID returns the id of a job's nth step, from 1.
func stepID(n int) string { return fmt.Sprintf("step_%d", n) }

// WriteProtocols writes the protocol files of the benchmark, for the request
// types bench.one and bench.three, into the folder, which must exist. The measured
// server must load its protocols from there.
func WriteProtocols(dir string) error {
	for steps, name := range names {
		path := filepath.Join(dir, "bench_"+name+".yaml")
		if err := os.WriteFile(path, []byte(protocolFile(steps)), 0o600); err != nil {
			return fmt.Errorf("write the protocols of the benchmark: %w", err)
		}
	}
	return nil
}

// protocolFile returns the protocol of jobs with that many steps.
func protocolFile(steps int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "protocol_id: bench_%s\nrequest_types: [%s]\nsteps:\n", names[steps], requestType(steps))
	for n := 1; n <= steps; n++ {
		input := "previous"
		if n == 1 {
			input = "job"
		}
		fmt.Fprintf(&b, "  - step_id: %s\n    step_type: BENCH\n    service: %s\n    input: %s\n", stepID(n), service, input)
	}
	return b.String()
}
