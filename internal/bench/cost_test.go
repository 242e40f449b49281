package bench

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// metricsOf serves metrics. Each counter is its factor times the number of reads.
func metricsOf(t *testing.T) *client {
	t.Helper()
	var reads atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		n := reads.Add(1)
		for name, factor := range map[string]int64{
			"process_cpu_seconds_total": 2, "go_memstats_alloc_bytes_total": 3000,
			"lucius_store_commits_total": 40, "lucius_store_reads_total": 50,
		} {
			_, _ = fmt.Fprintf(w, "# TYPE %s counter\n%s %d\n", name, name, factor*n)
		}
	}))
	client := newClient(server.URL, 1)
	t.Cleanup(func() {
		client.close()
		server.Close()
	})
	return client
}

func TestCostIsTheDifferenceInTheWindowPerJob(t *testing.T) {
	t.Parallel()
	now := time.Now()
	used, err := watchCost(t.Context(), metricsOf(t), window{now, now})
	if err != nil {
		t.Fatal(err)
	}
	if used.clientBytes <= 0 || used.clientCPU < 0 {
		t.Errorf("the client allocated %g bytes in %gs", used.clientBytes, used.clientCPU)
	}
	used.clientBytes, used.clientCPU = 20, 1
	want := Cost{ServerCPU: 2e5, ClientCPU: 1e5, ServerBytes: 300, ClientBytes: 2, Commits: 4, Reads: 5}
	if diff := cmp.Diff(want, used.per(10)); diff != "" {
		t.Errorf("cost (-want +got):\n%s", diff)
	}
	if got := used.per(0); got != (Cost{}) {
		t.Errorf("no jobs cost %+v", got)
	}
}
