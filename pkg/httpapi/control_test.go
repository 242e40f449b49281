package httpapi_test

import (
	"net/http"
	"testing"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/pkg/apierror"
)

func TestControl_SaysWhetherTheJobChanged(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	path := "/v1/jobs/" + h.submitted(t)
	for _, step := range []struct {
		verb   string
		status int
		state  api.JobState
	}{
		{":pause", http.StatusAccepted, api.JobStatePaused},
		{":pause", http.StatusOK, api.JobStatePaused},
		{":resume", http.StatusAccepted, api.JobStateDispatching},
		{":resume", http.StatusOK, api.JobStateDispatching},
		{":cancel", http.StatusAccepted, api.JobStateCancelled},
		{":cancel", http.StatusOK, api.JobStateCancelled},
	} {
		got := h.do(t, http.MethodPost, path+step.verb, `{"reason":"because"}`)
		if job := decoded[api.Job](t, got); got.Status != step.status || job.State != step.state {
			t.Errorf("%s: %d, %s", step.verb, got.Status, job.State)
		}
	}
	if refused := problemOf(t, h.do(t, http.MethodPost, path+":pause", "")); refused.Code != apierror.IllegalTransition {
		t.Errorf("a cancelled job was paused: %+v", refused)
	}
}
