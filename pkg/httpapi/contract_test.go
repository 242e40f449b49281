package httpapi_test

import (
	"fmt"
	"net/http"
	"slices"
	"testing"

	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/auth"
	"github.com/lucius-project/lucius/pkg/httpapi"
	"github.com/lucius-project/lucius/pkg/httpapi/contracttest"
)

// The real use cases answer each status code that the document has for an operation,
// as documented. A status that no request can provoke should not be in the document,
// and an undocumented status fails the test.
func TestEveryDocumentedStatusCodeIsAnswered(t *testing.T) {
	t.Parallel()
	contract, err := contracttest.New()
	musttest.NoError(t, err)
	callers := newGuarded(t, contractCallers)
	t.Run("cases", func(t *testing.T) {
		t.Parallel()
		for _, operation := range contract.Operations() {
			for _, status := range operation.Statuses {
				t.Run(fmt.Sprintf("%s/%d", operation.ID, status), func(t *testing.T) {
					t.Parallel()
					g := callers.renewed(t, func(c *httpapi.Config) {
						c.CallerLimit, c.MaxBodyBytes = atMost(t, 1), maxTestBody
					})
					g.contract = contract
					g.walk(t, operation, status)
				})
			}
		}
	})
	t.Cleanup(func() {
		report := contract.Report()
		t.Logf("the exercised part of the contract:\n%s", report)
		if missing := report.Missing(); len(missing) > 0 {
			t.Errorf("not exercised: %v", missing)
		}
	})
}

// maxTestBody is the largest body that the server of these cases accepts.
const maxTestBody = 1 << 14

// walk provokes one status code of an operation.
func (g *guarded) walk(t *testing.T, operation contracttest.Operation, status int) {
	t.Helper()
	asked := g.situate(t, operation, status)
	asked.target, asked.body = g.fill(t, asked.target, asked.body)
	request, body := g.request(t, asked)
	if got, err := g.contract.Find(request); err != nil || got != operation.ID {
		t.Fatalf("the case asks for %q: %v", got, err)
	}
	judgeRequest(t, g.contract.CheckRequest(request, []byte(body)), status)
	request, body = g.request(t, asked)
	if got := g.send(t, g.Server, request, body); got.Status != status {
		t.Errorf("%s: %d, want %d: %s", asked.target, got.Status, status, got.Body)
	}
}

// situate returns the request of the case for that status code.
func (g *guarded) situate(t *testing.T, operation contracttest.Operation, status int) question {
	t.Helper()
	if own, ok := special[contracttest.Pair{Operation: operation.ID, Status: status}]; ok {
		return own(t, g)
	}
	accepted := accepting(t, g, operation.ID)
	if status < http.StatusMultipleChoices {
		return accepted
	}
	refused, ok := shared[status]
	if !ok {
		t.Fatalf("no case answers %d: say in this test how %s comes to it, or take it out of the document", status, operation.ID)
	}
	return refused(t, g, operation, accepted)
}

// judgeRequest fails the test if the document and the server disagree on whether a
// request is valid. A schema may or may not show the violations of 422.
func judgeRequest(t *testing.T, fault error, status int) {
	t.Helper()
	refused := status == http.StatusBadRequest || status == http.StatusUnsupportedMediaType
	switch {
	case status == http.StatusUnprocessableEntity:
	case refused && fault == nil:
		t.Errorf("the document allows the request that is answered %d", status)
	case !refused && fault != nil:
		t.Errorf("the document does not allow the request that is answered %d: %v", status, fault)
	}
}

// A case whose status code is no longer documented must be removed.
func TestEveryCaseIsDocumented(t *testing.T) {
	t.Parallel()
	statuses := map[string][]int{}
	for _, operation := range contract().Operations() {
		statuses[operation.ID] = operation.Statuses
	}
	for operation := range asks {
		if statuses[operation] == nil {
			t.Errorf("%s is not in the document", operation)
		}
	}
	for pair := range special {
		if !slices.Contains(statuses[pair.Operation], pair.Status) {
			t.Errorf("%s: %d is not in the document", pair.Operation, pair.Status)
		}
	}
}

// The outsiders have the roles of package auth.
func TestThereIsACallerForEachRole(t *testing.T) {
	t.Parallel()
	for _, role := range auth.Roles() {
		if !slices.Contains(contractCallers, string(role)+":*") {
			t.Errorf("no caller has the role %s alone", role)
		}
	}
}
