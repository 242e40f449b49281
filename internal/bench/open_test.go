package bench

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/lucius-project/lucius/api"
)

// A run that is late, here because its window has passed, sends the overdue commands and
// includes the delay in their latency.
func TestTheOpenLoopTimesFromWhenACommandWasDue(t *testing.T) {
	t.Parallel()
	b := &bench{options: Options{Rate: 50, WarmUp: time.Second}, progress: newProgress(nil)}
	b.options.setDefaults()
	var r *run
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		var command api.Command
		if err := json.NewDecoder(request.Body).Decode(&command); err != nil {
			t.Error(err)
		}
		r.tracker.end(command.CorrelationID, time.Now())
		_, _ = w.Write([]byte(`{"jobId":"job"}`))
	}))
	defer server.Close()
	r = b.newRun(Server{URL: server.URL}, loadNamed(Open), Empty)
	defer r.client.close()
	late := time.Minute
	r.window.end = time.Now().Add(-late)
	r.window.start = r.window.end.Add(-2 * time.Second)
	if err := openLoop(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	if r.counted.Load() != 2*50 || r.all.Load() != 3*50 {
		t.Errorf("%d jobs in the window and %d in all, want 100 and 150", r.counted.Load(), r.all.Load())
	}
	for name, times := range map[string]*latencies{"end to end": r.endToEnd, "submit": r.submit} {
		if least := time.Duration(times.histogram.Min()) * time.Microsecond; least < late-late/100 {
			t.Errorf("%s took %s, although it was due a minute ago", name, least)
		}
	}
}
