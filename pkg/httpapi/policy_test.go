package httpapi_test

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/auth"
)

// documented are the operations of the OpenAPI document.
func documented(t *testing.T) []string {
	t.Helper()
	doc, err := openapi3.NewLoader().LoadFromData(api.Spec())
	musttest.NoError(t, err)
	var operations []string
	for _, item := range doc.Paths.Map() {
		for _, operation := range item.Operations() {
			operations = append(operations, operation.OperationID)
		}
	}
	slices.Sort(operations)
	return operations
}

// permission is a row of the table in docs/run/access.md.
type permission struct {
	roles []auth.Role
	scope string
}

// policy reads the table, so that the test checks exactly what it promises.
func policy(t *testing.T) map[string]permission {
	t.Helper()
	text := musttest.ReadFile(t, "../../docs/run/access.md")
	rows := map[string]permission{}
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(strings.TrimSpace(line), "|")
		if len(cells) != 10 || !strings.HasPrefix(cells[2], " `") {
			continue
		}
		row := permission{scope: strings.TrimSpace(cells[7])}
		for i, role := range auth.Roles() {
			if strings.Contains(cells[3+i], "✓") {
				row.roles = append(row.roles, role)
			}
		}
		rows[strings.Trim(cells[2], " `")] = row
	}
	if len(rows) < 40 {
		t.Fatalf("%d rows were found: does the test still read the table?", len(rows))
	}
	return rows
}

// status is the answer to a caller with the role for those tenants that asks about the
// tenant t.
func (p permission) status(role auth.Role, tenants string) int {
	switch {
	case p.scope == "public":
		return http.StatusOK
	case !slices.Contains(p.roles, role):
		return http.StatusForbidden
	case tenants == "*", p.scope == "own", p.scope == "any":
		return http.StatusOK
	case p.scope == "all":
		return http.StatusForbidden
	case tenants == "t":
		return http.StatusOK
	case p.scope == "owner":
		return http.StatusNotFound
	default:
		return http.StatusForbidden
	}
}

// statusOfFirst is the status of the first command of a batch.
func statusOfFirst(t *testing.T, response answer) int {
	t.Helper()
	var result api.BatchResult
	if err := json.Unmarshal([]byte(response.Body), &result); err != nil || len(result.Results) == 0 {
		t.Fatalf("%v: %s", err, response.Body)
	}
	return int(result.Results[0].Status)
}
