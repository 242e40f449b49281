package httpapi_test

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/pkg/httpapi"
)

// silent is a response that nobody reads.
type silent struct{ header http.Header }

func (s silent) Header() http.Header          { return s.header }
func (silent) Write(data []byte) (int, error) { return len(data), nil }
func (silent) WriteHeader(int)                {}

// BenchmarkFrame measures what the transport adds to a use case that does
// nothing.
func BenchmarkFrame(b *testing.B) {
	for _, path := range []string{"/v1/commands", "/v1/callbacks/result", "/v1/work/w1:complete"} {
		b.Run(path, func(b *testing.B) {
			server, err := httpapi.New(httpapi.Config{
				Commands: idleCommands{}, Jobs: jobs{}, Callbacks: idleCallbacks{}, Work: idleWork{},
				Admin: admin{}, Readiness: readiness{},
				Registry: prometheus.NewRegistry(), Log: slog.New(slog.DiscardHandler),
			})
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				request := httptest.NewRequest(http.MethodPost, path, strings.NewReader(posts[path]))
				request.Header.Set("Content-Type", "application/json")
				server.ServeHTTP(silent{http.Header{}}, request)
			}
		})
	}
}

// The use cases that do nothing, not even remember.
type (
	idleCommands  struct{}
	idleCallbacks struct{ callbacks }
	idleWork      struct{ work }
)

func (idleCommands) Submit(context.Context, httpapi.Submission) (api.CommandAccepted, error) {
	return accepted, nil
}

func (idleCallbacks) Result(context.Context, api.ResultCallback) (api.CallbackOutcome, error) {
	return outcome, nil
}

func (idleWork) Complete(context.Context, string, api.WorkCompletion) (api.WorkItem, error) {
	return item, nil
}
