package console

import (
	"cmp"
	"context"
	"math"
	"strings"
	"time"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/diagnosis"
)

// rescheduling holds the dates that the form of a job asks for.
type rescheduling struct{ begins, at, in, expires, expiry string }

// The options of the form's lists. The last of each is a flag of the command.
const (
	beginsAtDate = "at its date"
	beginsNow    = "now"
	expiryKept   = "kept"
	expiryGone   = "removed"
)

// fields returns what the form asks for.
func (d *rescheduling) fields() []field {
	return []field{
		{Name: "begins", Switch: "now", Label: "Begins", Value: d.begins, Options: []string{beginsAtDate, beginsNow}},
		{
			Name: "at", Flag: "at", Label: "New date", Value: d.at, At: "/not_before",
			Hint: "A time such as 2026-01-28T02:00:00Z. Empty: as it is.",
		},
		{Name: "in", Flag: "in", Label: "Or begins after", Value: d.in, At: "/delay_seconds", Hint: "A duration such as 90m or 2d."},
		{
			Name: "expires", Flag: "expires", Label: "Expires unless started", Value: d.expires, At: "/not_after",
			Hint: "By a time such as 2026-01-28T06:00:00Z, or within a duration such as 4h. Empty: as it is.",
		},
		{Name: "expiry", Switch: "never-expires", Label: "Its expiry", Value: d.expiry, Options: []string{expiryKept, expiryGone}},
	}
}

// args returns the dates as flags of the command line.
func (d *rescheduling) args() (args []string) {
	for _, flag := range [][2]string{{"at", d.at}, {"in", d.in}, {"expires", d.expires}} {
		args = append(args, diagnosis.Flag(flag[0], flag[1])...)
	}
	if d.begins == beginsNow {
		args = append(args, "--now")
	}
	if d.expiry == expiryGone {
		args = append(args, "--never-expires")
	}
	return args
}

// request returns the request that the form makes.
func (d *rescheduling) request(now time.Time) (q api.RescheduleRequest, err error) {
	begins := 0
	for _, given := range []bool{d.begins == beginsNow, d.at != "", d.in != ""} {
		if given {
			begins++
		}
	}
	switch {
	case begins > 1:
		return q, badField("begins", "The job begins now, at a date or after a while: choose one.")
	case d.expiry == expiryGone && d.expires != "":
		return q, badField("expires", "The expiry is either set or removed.")
	case begins == 0 && d.expires == "" && d.expiry != expiryGone:
		return q, badInput("Say what to change: when it begins, or when it expires.")
	}
	if d.begins == beginsNow {
		q.DelaySeconds = new(int64(0))
	}
	if d.at != "" {
		at, err := time.Parse(time.RFC3339, d.at)
		if err != nil {
			return q, badField("at", "The new date is a time such as 2026-01-28T02:00:00Z.")
		}
		q.NotBefore = api.NewTime(at)
	}
	if d.in != "" {
		delay, err := lasting(d.in)
		if err != nil || delay < 0 {
			return q, badField("in", "How long it waits is a number with a unit, such as 90m or 2d.")
		}
		q.DelaySeconds = new(int64(math.Ceil(delay.Seconds())))
	}
	if d.expires != "" {
		at, err := time.Parse(time.RFC3339, d.expires)
		if left, fault := lasting(d.expires); err != nil && fault == nil && left > 0 {
			at, err = now.Add(left), nil
		}
		if err != nil {
			return q, badField("expires", "It expires by a time such as 2026-01-28T06:00:00Z, or within a duration such as 4h.")
		}
		q.NotAfter = api.NewTime(at)
	}
	q.NeverExpires = d.expiry == expiryGone
	return q, nil
}

// rescheduleJob changes the dates of a job that has not begun.
func rescheduleJob(r *request) (deed, error) {
	id := r.FormValue("job")
	entered := func(name string) string { return strings.ReplaceAll(r.FormValue(name), " ", "") }
	d := rescheduling{
		begins: cmp.Or(r.FormValue("begins"), beginsAtDate), at: entered("at"), in: entered("in"), expires: entered("expires"),
		expiry: cmp.Or(r.FormValue("expiry"), expiryKept),
	}
	return deed{
		Title: "Reschedule job " + diagnosis.ShortID(id) + "?", Button: "Reschedule the job", Fields: d.fields(), First: "begins",
		Text:    "It begins by itself at its date. If no worker has started it by its expiry, it fails with the code expired.",
		Command: diagnosis.Command("jobs reschedule", append([]string{id}, d.args()...)...),
		do: func(ctx context.Context, reason string) (string, error) {
			request, err := d.request(r.now)
			if err != nil {
				return "", err
			}
			request.Reason = reason
			_, err = call[api.Job](r.api.RescheduleJob(ctx, id, request))
			return link("jobs/" + id), err
		},
	}, nil
}
