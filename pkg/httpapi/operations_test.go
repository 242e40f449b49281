package httpapi_test

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/api"
)

// A dry run of an operation shows the beginning of a long value, and that of one job the whole value.
func TestRetry_ShowsTheBeginningOfLongValues(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	id := h.failed(t)
	word, list := strings.Repeat("é", 201), `["`+strings.Repeat("é", 300)+`"]`
	edits := `"payload_patch":{"word":"` + word + `","list":` + list + `,"brief":"` + word[2:] + `"},"dry_run":true}`
	after := func(changes []api.CommandChange) map[string]string {
		values := map[string]string{}
		for _, change := range changes {
			values[change.Pointer] = string(change.After)
		}
		return values
	}
	want := map[string]string{
		"/payload/brief": `"` + word[2:] + `"`, "/payload/word": `"` + word[2:] + `…"`,
		"/payload/list": `"[\"` + strings.Repeat("é", 198) + `…"`,
	}
	preview := decoded[api.OperationPreview](t, h.given(t, "POST /v1/admin/retries", `{"job_ids":["`+id+`"],`+edits))
	if diff := cmp.Diff(want, after(preview.Sample[0].Changes)); diff != "" {
		t.Errorf("of an operation (-want +got):\n%s", diff)
	}
	want["/payload/word"], want["/payload/list"] = `"`+word+`"`, list
	plan := decoded[api.RerunPreview](t, h.given(t, "POST /v1/jobs/"+id+":rerun", "{"+edits))
	if diff := cmp.Diff(want, after(plan.Changes)); diff != "" {
		t.Errorf("of a job (-want +got):\n%s", diff)
	}
}

// A list of operations leaves out a long patch, which the operation itself has.
func TestListOperations_LeavesOutALongPatch(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	for _, patch := range []string{`{"model":"v3"}`, `{"model":"` + strings.Repeat("v", 200) + `"}`} {
		made := decoded[api.Operation](t, h.given(t, "POST /v1/admin/retries", `{"all":true,"payload_patch":`+patch+`}`))
		page := decoded[api.OperationPage](t, h.do(t, http.MethodGet, "/v1/admin/retries", ""))
		var listed json.RawMessage
		if len(patch) <= 200 {
			listed = json.RawMessage(patch)
		}
		i := slices.IndexFunc(page.Operations, func(op api.Operation) bool { return op.OperationID == made.OperationID })
		if got := page.Operations[i]; string(got.PayloadPatch) != string(listed) {
			t.Errorf("the list has the patch %s, want %s", got.PayloadPatch, listed)
		}
		one := decoded[api.Operation](t, h.do(t, http.MethodGet, "/v1/admin/operations/"+made.OperationID, ""))
		if string(one.PayloadPatch) != patch {
			t.Errorf("the operation has the patch %s, want %s", one.PayloadPatch, patch)
		}
	}
}
