package bench

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// The services of the benchmark's jobs. Workers complete the steps of the first, only start
// the steps of the second, and the third has no worker.
const (
	service        = "bench"
	liveService    = "bench_live"
	waitingService = "bench_waiting"
)

// The request types of the last two services, and of bulk work.
const (
	liveType    = "bench.live"
	waitingType = "bench.waiting"
	lineType    = "bench.line" // of the last service, in one line
	bulkType    = "bench.bulk" // of the first service, as bulk work
)

// requestType returns the request type of jobs with that many steps of the first service.
func requestType(steps int) string { return fmt.Sprintf("bench.%d", steps) }

// stepID returns the id of a job's nth step, from 1.
func stepID(n int) string { return fmt.Sprintf("step_%d", n) }

// writeProtocols creates the folder with the protocols of the benchmark.
func writeProtocols(dir string) error {
	if err := os.Mkdir(dir, 0o750); err != nil {
		return fmt.Errorf("write the protocols of the benchmark: %w", err)
	}
	for id, text := range map[string]string{
		"bench_1":       protocolFile("bench_1", requestType(1), service, 1),
		"bench_3":       protocolFile("bench_3", requestType(3), service, 3),
		"bench_bulk":    protocolFile("bench_bulk", bulkType, service, 1) + "priority: bulk\n",
		"bench_live":    protocolFile("bench_live", liveType, liveService, 1),
		"bench_waiting": protocolFile("bench_waiting", waitingType, waitingService, 1),
		"bench_line":    protocolFile("bench_line", lineType, waitingService, 1) + "order: {max_waiting: 1000000}\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, id+".yaml"), []byte(text), 0o600); err != nil {
			return fmt.Errorf("write the protocols of the benchmark: %w", err)
		}
	}
	return nil
}

// protocolFile returns a protocol with that many steps. Its lease outlasts any measurement.
func protocolFile(id, requestType, service string, steps int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "protocol_id: %s\nrequest_types: [%s]\nlease: 24h\nsteps:\n", id, requestType)
	for n := 1; n <= steps; n++ {
		input := "previous"
		if n == 1 {
			input = "job"
		}
		fmt.Fprintf(&b, "  - step_id: %s\n    step_type: BENCH\n    service: %s\n    input: %s\n", stepID(n), service, input)
	}
	return b.String()
}

// payloadOf returns a payload of that many bytes.
func payloadOf(size int) json.RawMessage {
	filling := bytes.Repeat([]byte{'x'}, size-minPayload)
	return fmt.Appendf(nil, `{"data":"%s"}`, filling)
}
