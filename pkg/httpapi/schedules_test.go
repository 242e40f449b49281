package httpapi_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/pkg/apierror"
)

func TestPreviewSchedule_MarksChangesOfClocks(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	got := decoded[api.SchedulePreview](t, h.do(t, http.MethodPost, "/v1/schedules:preview",
		`{"cron":"30 2 * * *","time_zone":"Europe/Berlin","after":"2026-03-27T12:00:00Z","count":3}`))
	times := make([]string, 0, 3)
	for _, one := range got.Times {
		times = append(times, one.At.String()+" "+one.Local+" "+string(one.ClockChange))
	}
	want := []string{
		"2026-03-28T01:30:00.000Z 2026-03-28T02:30:00+01:00 ", "2026-03-29T01:00:00.000Z 2026-03-29T03:00:00+02:00 moved",
		"2026-03-30T00:30:00.000Z 2026-03-30T02:30:00+02:00 ",
	}
	if diff := cmp.Diff(want, times); diff != "" || got.TimeZone != "Europe/Berlin" {
		t.Errorf("times in %s (-want +got):\n%s", got.TimeZone, diff)
	}
	byDefault := decoded[api.SchedulePreview](t, h.do(t, http.MethodPost, "/v1/schedules:preview", `{"every":"15m"}`))
	if len(byDefault.Times) != 10 || byDefault.TimeZone != "UTC" {
		t.Errorf("got %d times in %s, want 10 in UTC", len(byDefault.Times), byDefault.TimeZone)
	}
}

func TestPreviewSchedule_NamesTheFieldThatMakesNoSense(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	tests := []struct {
		body, pointer, says string
		code                apierror.Code
	}{
		{`{}`, "/cron", "is required", apierror.ScheduleInvalid},
		{`{"cron":"@every 1h"}`, "/cron", "use every", apierror.ScheduleInvalid},
		{`{"cron":"@daily","time_zone":"Europe/Bonn"}`, "/time_zone", "Europe/Bonn", apierror.ScheduleInvalid},
		{`{"every":"5s"}`, "/every", "10s", apierror.ScheduleInvalid},
		{`{"every":"soon"}`, "/every", "duration", apierror.InvalidEnvelope},
		{`{"cron":"@daily","count":101}`, "/count", "at most 100", apierror.InvalidEnvelope},
	}
	for _, test := range tests {
		t.Run(test.body, func(t *testing.T) {
			t.Parallel()
			got := problemOf(t, h.do(t, http.MethodPost, "/v1/schedules:preview", test.body))
			if got.Code != test.code || len(got.Errors) != 1 || got.Errors[0].Pointer != test.pointer ||
				!strings.Contains(got.Errors[0].Message, test.says) {
				t.Errorf("got %+v, want %s at %s", got, test.code, test.pointer)
			}
		})
	}
}
