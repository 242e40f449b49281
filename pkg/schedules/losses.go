package schedules

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lucius-project/lucius/pkg/schedules/calendar"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

const (
	// partitionLost lists the schedules that lost an occurrence of late: one row for each, with what HEAD says of it. So
	// that what needs attention is one scan, however many schedules there are and however long their histories.
	partitionLost = "lost"
	// lostHours is for how many hours losses are counted, the current one included.
	lostHours = 24
	// keepLost is how long a row stays in the list after the newest loss.
	keepLost = (lostHours + 1) * time.Hour
	// mostDetail bounds the text that says why, in bytes.
	mostDetail = 500
	// mostCounted bounds how many occurrences of one row of many missed ones are counted.
	mostCounted = 10_000
)

// losses are the occurrences of a schedule that were missed or refused of late: columns of HEAD, and of the list of losses.
type losses struct {
	// Hours are those of the last day in which something was lost, oldest first, by when that was decided.
	Hours []hourOfLosses `column:"lost_hours"`
	// Since is the first, and LastFor the newest, of the latest losses, between which nothing was fired.
	Since   time.Time `column:"lost_since"`
	LastFor time.Time `column:"lost_for"`
	LastAt  time.Time `column:"lost_at"` // when the newest was decided
	Outcome Outcome   `column:"lost_outcome"`
	Detail  string    `column:"lost_detail"`
	// FailuresInRow counts the newest occurrences that were refused or missed.
	FailuresInRow int `column:"failures_in_row"`
}

// hourOfLosses counts what was lost in one hour.
type hourOfLosses struct {
	Hour    int64 `json:"h"` // since 1970
	Missed  int   `json:"m,omitempty"`
	Refused int   `json:"r,omitempty"`
}

// Losses are the occurrences of a schedule that were missed or refused in the last 24 hours: a row of the list of losses, and
// sums of its hours.
type Losses struct {
	losses

	ScheduleID string `column:"schedule_id"`
	TenantID   string `column:"tenant_id"`
	Name       string `column:"name"`

	Missed, Refused int
}

var lostCodec = tablestore.NewCodec[Losses]()

// note counts a decided occurrence. It reports whether the list of losses has to say something else.
func (l *losses) note(fire *Fire) (changed bool) {
	if fire.stopped() {
		return false
	}
	many := max(1, fire.Count)
	hour := hourOfLosses{Hour: hourOf(fire.DecidedAt)}
	switch fire.Outcome {
	case Missed:
		hour.Missed = many
	case Refused:
		hour.Refused = many
	case Claimed, Fired, Skipped:
		changed = l.FailuresInRow > 0
		l.FailuresInRow = 0
		return changed
	}
	if l.FailuresInRow == 0 {
		if l.Since = fire.ScheduledFor; !fire.From.IsZero() {
			l.Since = fire.From
		}
	}
	l.FailuresInRow += many
	l.LastFor, l.LastAt, l.Outcome, l.Detail = fire.ScheduledFor, fire.DecidedAt, fire.Outcome, fire.Detail
	if len(l.Detail) > mostDetail {
		l.Detail = strings.ToValidUTF8(l.Detail[:mostDetail], "") + "…"
	}
	if n := len(l.Hours); n > 0 && l.Hours[n-1].Hour >= hour.Hour { // The clock of another process may be ahead.
		l.Hours[n-1].Missed += hour.Missed
		l.Hours[n-1].Refused += hour.Refused
		return true
	}
	l.Hours = slices.DeleteFunc(append(l.Hours, hour), func(old hourOfLosses) bool { return old.Hour <= hour.Hour-lostHours })
	return true
}

func hourOf(at time.Time) int64 { return at.Unix() / 3600 }

// countOccurrences returns how many occurrences are between two times, both included, at most [mostCounted].
func countOccurrences(cal *calendar.Calendar, from, to time.Time) (n int) {
	for at, ok := cal.Next(from.Add(-1)); ok && !at.After(to) && n < mostCounted; at, ok = cal.Next(at) {
		n++
	}
	return n
}

func (s *Service) lostKey(tenantID, id string) tablestore.Key {
	return tablestore.Key{Table: s.table, Partition: partitionLost, Row: tablestore.Join(tenantID, id)}
}

// listLost returns the write that puts the schedule into the list of losses.
func (s *Service) listLost(sc *stored) tablestore.Op {
	row := Losses{ScheduleID: sc.id, TenantID: sc.TenantID, Name: sc.Name, losses: sc.losses}
	return tablestore.Op{Verb: tablestore.Put, Key: s.lostKey(sc.TenantID, sc.id), Properties: lostCodec.Encode(&row, nil)}
}

// Losses returns one page of the schedules that lost occurrences in the last 24 hours, of a tenant or, without one, of all. It is
// the page after that token, and next is the token of the next one, empty at the end. It may have fewer than limit.
func (s *Service) Losses(ctx context.Context, tenantID, after string, limit int) (found []Losses, next string, err error) {
	query := tablestore.Query{Table: s.table, Partition: partitionLost, Limit: limit}
	if tenantID != "" {
		query.From = tablestore.Join(tenantID) + ":"
		query.To = tablestore.PrefixEnd(query.From)
	}
	if after != "" {
		if _, err := tablestore.Split(after); err != nil {
			return nil, "", &InvalidError{Pointer: "page_token", Message: "is of another list"}
		}
		query.From = max(query.From, after+"!") // No key has this character.
	}
	page, err := s.cfg.Store.Scan(ctx, query)
	if err != nil {
		return nil, "", fmt.Errorf("list the losses of schedules: %w", err)
	}
	oldest := hourOf(s.cfg.Now()) - lostHours
	for i := range page.Rows {
		var one Losses
		if err := lostCodec.Decode(&page.Rows[i], &one); err != nil {
			return nil, "", err
		}
		for _, hour := range one.Hours {
			if hour.Hour > oldest {
				one.Missed += hour.Missed
				one.Refused += hour.Refused
			}
		}
		if one.Missed+one.Refused > 0 {
			found = append(found, one)
		}
		next = page.Rows[i].Key.Row
	}
	if page.Next == "" {
		next = ""
	}
	return found, next, nil
}

// Count counts the schedules of all tenants by state: those of one page, after that token. next is the token of the next page,
// empty at the end. At the end it also takes those out of the list of losses that lost nothing for a day, and deletes what is left of
// schedules that were deleted long ago.
func (s *Service) Count(ctx context.Context, limit int, after string) (counts map[string]int, next string, err error) {
	query := tablestore.Query{Table: s.table, Partition: partitionNames, Limit: limit}
	if after != "" {
		query.From = after + "!" // No key has this character.
	}
	page, err := s.cfg.Store.Scan(ctx, query)
	if err != nil {
		return nil, "", fmt.Errorf("count the schedules: %w", err)
	}
	counts = map[string]int{}
	for i := range page.Rows {
		var named nameRow
		if err := nameCodec.Decode(&page.Rows[i], &named); err != nil {
			return counts, "", err
		}
		sc, err := s.loadHead(ctx, named.ID)
		switch {
		case errors.Is(err, ErrNotFound): // It is being created, or its creation was lost.
		case err != nil:
			return counts, "", err
		case sc.State != Deleted:
			counts[string(sc.State)]++
		}
		next = page.Rows[i].Key.Row
	}
	if page.Next != "" {
		return counts, next, nil
	}
	return counts, "", errors.Join(s.trimLost(ctx), s.purgeDeleted(ctx))
}

// trimLost takes those out of the list of losses that lost nothing for a day, or are deleted: a process may have listed one while
// another deleted it.
func (s *Service) trimLost(ctx context.Context) error {
	rows, err := tablestore.ScanAll(ctx, s.cfg.Store, tablestore.Query{Table: s.table, Partition: partitionLost})
	if err != nil {
		return fmt.Errorf("read the list of losses: %w", err)
	}
	for i := range rows {
		var row Losses
		if err := lostCodec.Decode(&rows[i], &row); err != nil {
			return err
		}
		if s.cfg.Now().Sub(row.LastAt) < keepLost {
			sc, err := s.loadHead(ctx, row.ScheduleID)
			if err == nil && sc.State != Deleted {
				continue
			}
			if err != nil && !errors.Is(err, ErrNotFound) {
				return err
			}
		}
		// A loss that was listed since has made another version.
		_, err := s.cfg.Store.Commit(ctx, tablestore.Batch{{Verb: tablestore.Delete, Key: rows[i].Key, ETag: rows[i].ETag}})
		if err != nil && !errors.Is(err, tablestore.ErrConflict) && !errors.Is(err, tablestore.ErrNotFound) {
			return fmt.Errorf("shorten the list of losses: %w", err)
		}
	}
	return nil
}
