package serving

import (
	"strings"
	"testing"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/pkg/failures"
	"github.com/lucius-project/lucius/pkg/httpapi"
	"github.com/lucius-project/lucius/pkg/jobs"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/outbox"
	"github.com/lucius-project/lucius/pkg/problem"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore/memstore"
)

// listed are the lists that take a page token, over a store with one job.
func listed(f *testing.F) map[string]func(token string) error {
	f.Helper()
	ctx := f.Context()
	store := memstore.New(memstore.Options{})
	l, err := ledger.Open(ctx, ledger.Config{Store: store, Hold: 1 << 30})
	if err != nil {
		f.Fatal(err)
	}
	accepted, err := l.Accept(ctx, ledger.Command{
		Job:     statemachine.Job{TenantID: "tenant_a", IdempotencyHash: "h"},
		Steps:   []statemachine.Step{{ID: "s", Type: "T", Service: "s", Policy: statemachine.Policy{MaxAttempts: 1}}},
		Payload: []byte(`{}`),
	})
	if err != nil {
		f.Fatal(err)
	}
	retries, err := failures.New(failures.Config{Ledger: l, Store: store, Table: l.Tables().Schedule})
	if err != nil {
		f.Fatal(err)
	}
	var ended jobs.Ended
	tenant := "tenant_a"
	all := jobsPort{jobs.New(l, &ended, 0)}
	rows := adminPort{operator: outbox.NewOperator(l)}
	page := func(token string) httpapi.Page { return httpapi.Page{Limit: 2, Token: token} }
	return map[string]func(token string) error{
		"jobs": func(token string) error {
			_, err := all.List(ctx, api.ListJobsParams{TenantID: &tenant}, page(token))
			return err
		},
		"jobs of all tenants": func(token string) error {
			_, err := all.List(ctx, api.ListJobsParams{}, page(token))
			return err
		},
		"events": func(token string) error {
			_, err := all.Events(ctx, accepted.Job.ID, page(token))
			return err
		},
		"outbox": func(token string) error {
			_, err := rows.Outbox(ctx, api.ListOutboxParams{}, page(token))
			return err
		},
		"webhooks": func(token string) error {
			_, err := webhooksPort{l}.Undelivered(ctx, api.ListWebhooksParams{}, page(token))
			return err
		},
		"retries": func(token string) error {
			_, err := retries.Get(ctx, "none", 2, token)
			return err
		},
	}
}

// FuzzPageToken sees to it that a page token which no page has given, and one that
// stands for a place at which no page has ended, is either taken for some place, or
// refused as the client's mistake: it never makes an
// error of the server's, and never says what the token stands for.
func FuzzPageToken(f *testing.F) {
	lists := listed(f)
	for _, token := range []string{
		"", "0", "1", "-1", "9223372036854775807", "9223372036854775808", "x", "3:", ":", "3:live", "16:", "\x00", "a/b", "%41",
		"0196b2f1-0000-7000-8000-000000000000", strings.Repeat("9", 1024), "tenant_a:0196b2f1-0000-7000-8000-000000000000",
	} {
		f.Add(token)
	}
	f.Fuzz(func(t *testing.T, token string) {
		for _, token := range []string{token, pageToken(token)} {
			if len(token) > api.MaxPageToken {
				continue // Refused before.
			}
			for name, list := range lists {
				judgeToken(t, name, token, list(token))
			}
		}
	})
}

// judgeToken fails the test where a list answers a page token in another way than
// that.
func judgeToken(t *testing.T, name, token string, err error) {
	t.Helper()
	if err == nil {
		return
	}
	told := problem.From(err)
	if status := told.Code.Status(); status < 400 || status >= 500 {
		t.Errorf("%s, token %q: %d %v", name, token, status, err)
	}
	if len(token) > 8 && strings.Contains(told.Detail, token) {
		t.Errorf("%s: the answer repeats the token: %s", name, told.Detail)
	}
}
