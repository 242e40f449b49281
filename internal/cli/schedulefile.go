package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/strictyaml"
)

// scheduleFile is a schedule in a file.
type scheduleFile struct {
	TenantID string `json:"tenant_id"`
	Name     string `json:"name"`

	api.ScheduleRequest

	// known is the schedule that it was compared with, zero if there was none or if the file names a rev.
	known api.Schedule
}

// readSchedules reads a file of schedules, or those of a folder in the order of their names.
func readSchedules(path string) (all []scheduleFile, err error) {
	files := []string{path}
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		files = nil
		for _, pattern := range []string{"*.yaml", "*.yml", "*.json"} {
			some, err := filepath.Glob(filepath.Join(path, pattern))
			if err != nil {
				return nil, usagef("read the schedules: %w", err)
			}
			files = append(files, some...)
		}
		slices.Sort(files)
	}
	seen := map[string]bool{}
	for _, file := range files {
		some, err := readScheduleFile(file)
		if err != nil {
			return nil, err
		}
		for i := range some {
			id := some[i].TenantID + "/" + some[i].Name
			switch {
			case some[i].TenantID == "" || some[i].Name == "":
				return nil, usagef("%s: a schedule has no tenant_id or no name", file)
			case seen[id]:
				return nil, usagef("%s names %s again", file, plain(id))
			}
			seen[id] = true
		}
		all = append(all, some...)
	}
	if len(all) == 0 {
		return nil, usagef("%s has no schedule", path)
	}
	return all, nil
}

// readScheduleFile reads the schedule of a file, or its list.
func readScheduleFile(path string) ([]scheduleFile, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, usagef("read the schedules: %w", err)
	}
	fault := func(err error) error { return usagef("%s is not a file of schedules: %w", path, err) }
	var document any // JSON is YAML, too: neither may have a key twice.
	if fault := strictyaml.Decode(text, &document, nil); fault != nil {
		fault.File = path
		return nil, usagef("%w", fault)
	}
	asJSON := text
	if !json.Valid(text) { // YAML would make strings of some of its numbers.
		if asJSON, err = yaml.YAMLToJSON(text); err != nil {
			return nil, fault(err)
		}
	}
	var list struct {
		Schedules []json.RawMessage `json:"schedules"`
	}
	if err := json.Unmarshal(asJSON, &list); err != nil {
		return nil, fault(err)
	}
	if list.Schedules == nil {
		list.Schedules = []json.RawMessage{asJSON}
	}
	found := make([]scheduleFile, len(list.Schedules))
	for i, one := range list.Schedules {
		decoder := json.NewDecoder(bytes.NewReader(one))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(&found[i]); err != nil {
			return nil, fault(err)
		}
	}
	return found, nil
}

// diffSchedule compares a schedule with that of the server.
func (s *session) diffSchedule(ctx context.Context, wanted *scheduleFile) (scheduleDiff, error) {
	diff := scheduleDiff{Schedule: wanted.TenantID + "/" + wanted.Name, Change: "create"}
	known, err := call[api.Schedule](s.GetSchedule(ctx, wanted.TenantID, wanted.Name))
	if refused, is := errors.AsType[*Error](err); is && refused.Problem != nil && refused.Problem.Code == apierror.ScheduleNotFound {
		return diff, nil
	}
	if err != nil {
		return diff, err
	}
	if wanted.ExpectedRev == 0 {
		wanted.known, wanted.ExpectedRev = known, known.Rev
	}
	before, after := scheduleFields(&api.ScheduleRequest{
		Cron: known.Cron, Every: known.Every, TimeZone: known.TimeZone, StartAt: known.StartAt, EndAt: known.EndAt, Jitter: known.Jitter,
		ExcludedDates: known.ExcludedDates, Overlap: known.Overlap, CatchUp: known.CatchUp, Command: known.Command,
	}), scheduleFields(&wanted.ScheduleRequest)
	names := slices.Collect(maps.Keys(before))
	names = slices.AppendSeq(names, maps.Keys(after))
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		if !reflect.DeepEqual(before[name], after[name]) {
			diff.Fields = append(diff.Fields, fmt.Sprintf("%s: %s, was %s", name, asText(after[name]), asText(before[name])))
		}
	}
	diff.Change = "change"
	if len(diff.Fields) == 0 {
		diff.Change = "unchanged"
	}
	return diff, nil
}

// putSchedule creates or changes a schedule, unless its definition is no longer the one that it was
// compared with. A pause raises the rev, too. A schedule that was made since the comparison found none is changed,
// also if another request makes it at the same time.
func (s *session) putSchedule(ctx context.Context, wanted *scheduleFile) error {
	for attempt := 1; ; attempt++ {
		_, err := call[api.Schedule](s.PutSchedule(ctx, wanted.TenantID, wanted.Name, wanted.ScheduleRequest))
		if isRefused(err, apierror.Conflict) && attempt < attempts {
			if err := s.pause(ctx, time.Duration(attempt)*time.Second); err != nil {
				return err
			}
			continue
		}
		if !isRefused(err, apierror.RevConflict) || wanted.known.ScheduleID == "" {
			return err
		}
		now, err := call[api.Schedule](s.GetSchedule(ctx, wanted.TenantID, wanted.Name))
		if err != nil {
			return err
		}
		if now.ScheduleID != wanted.known.ScheduleID || now.Version != wanted.known.Version {
			return &Error{Code: ExitRefused, Err: errors.New("it was changed since it was compared: repeat the command")}
		}
		wanted.ExpectedRev = now.Rev
	}
}

// scheduleFields returns the members of a definition, with the server's defaults.
func scheduleFields(request *api.ScheduleRequest) map[string]any {
	one := *request
	one.ExpectedRev = 0
	for _, text := range []*string{&one.Every, &one.Jitter, &one.CatchUp.Window} {
		if span, err := api.Span(*text); err == nil {
			*text = api.SpanText(span)
		}
	}
	if one.Overlap == "" {
		one.Overlap = api.ScheduleOverlapSkip
	}
	if one.CatchUp.Policy == "" {
		one.CatchUp.Policy = api.ScheduleCatchUpPolicyLast
	}
	if one.CatchUp.Window == "" {
		one.CatchUp.Window = api.SpanText(time.Hour)
	}
	text, err := json.Marshal(one)
	fields, ok := exactly(text).(map[string]any)
	if err != nil || !ok {
		panic(fmt.Sprintf("a definition is no JSON object: %v", err)) // It is made of JSON.
	}
	return fields
}

// asText writes a value as JSON.
func asText(value any) string {
	if value == nil {
		return "not set"
	}
	text, err := json.Marshal(value)
	if err != nil {
		panic(err) // It was made of JSON.
	}
	return string(text)
}
