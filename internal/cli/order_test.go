package cli_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/cli"
	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/apierror"
)

func TestSubmit_Order(t *testing.T) {
	t.Parallel()
	s, l := newIntake(t)
	const command = `{"request_type":"doc.ingest","doc_id":"1"}`
	for i, test := range []struct{ flags, want string }{
		{"--order-key customer-42", `"order_key":"customer-42"}`},
		{"--order-key a\"b --order-mode newest", `"order_key":"a\"b","order_mode":"newest"}`},
		{"--order-mode reject", `"order_mode":"reject"}`},
	} {
		l.Stdin = strings.NewReader(command)
		out, err := l.run(t, append([]string{"submit", "-"}, strings.Fields(test.flags)...)...)
		if body := s.bodies[i]; err != nil || !strings.HasSuffix(body, test.want) || len(s.jobs) != 1 {
			t.Errorf("%s: %v, %s, sent %s", test.flags, err, out, body)
		}
	}
	for text, want := range map[string]string{
		`{"order_key":"k"}`:     "line 2: the command has an order_key: leave out --order-key",
		`{"order_mode":"fifo"}`: "line 2: the command has an order_mode: leave out --order-mode",
	} {
		l.Stdin = strings.NewReader(command + "\n" + text)
		_, err := l.run(t, "submit", "-", "--order-key", "a", "--order-mode", "fifo")
		if cli.ExitCode(err) != cli.ExitUsage || !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
	l.Stdin = strings.NewReader(command)
	_, err := l.run(t, "submit", "-", "--order-mode", "lifo")
	if cli.ExitCode(err) != cli.ExitUsage || !strings.Contains(fmt.Sprint(err), `--order-mode is "lifo", it must be fifo, newest or reject`) {
		t.Errorf("a mode that is none: %v", err)
	}
}

// A command that is refused for one before it is sent again with that one, in the order of the file.
func TestSubmit_RepeatsWhatWaitsForAPredecessor(t *testing.T) {
	t.Parallel()
	var sent [][]string
	l := newLine(t, serve(t, func(w http.ResponseWriter, r *http.Request) {
		var request struct {
			Commands []struct {
				Key string `json:"idempotency_key"`
			}
		}
		musttest.NoError(t, json.NewDecoder(r.Body).Decode(&request))
		var keys []string
		var answer api.BatchResult
		for i, c := range request.Commands {
			keys = append(keys, c.Key)
			item := api.BatchItem{Status: http.StatusAccepted, JobID: jobID, State: api.JobStateQueued, Replayed: new(bool)}
			if code := []apierror.Code{"", apierror.StoreUnavailable, apierror.PredecessorRefused}[i]; len(sent) == 0 && code != "" {
				item = api.BatchItem{Status: int32(code.Status()), Error: &api.Problem{Status: int32(code.Status()), Code: code}}
			}
			answer.Results = append(answer.Results, item)
		}
		sent = append(sent, keys)
		fmt.Fprint(w, encode(t, answer))
	}))
	l.Stdin = strings.NewReader(`{"idempotency_key":"a"}{"idempotency_key":"b"}{"idempotency_key":"c"}`)
	out, err := l.run(t, "submit", "-")
	if err != nil || !strings.Contains(out, "3 accepted") || len(sent) != 2 || !slices.Equal(sent[1], []string{"b", "c"}) {
		t.Errorf("%v, %s, sent %v", err, out, sent)
	}
}

func TestJobsGet_ShowsTheOrder(t *testing.T) {
	t.Parallel()
	l := newLine(t, answers(t, map[string]any{"GET /v1/jobs/" + jobID: ordered(parkedJob())}))
	golden(t, "job-ordered.txt", l.must(t, "jobs", "get", jobID))
}
