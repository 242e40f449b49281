package jobs_test

import "testing"

// TestTableLayout has what holds in the layout "ledger" hold in the layout "table".
func TestTableLayout(t *testing.T) { //nolint:paralleltest // Each of them says it for itself.
	for name, test := range map[string]func(*testing.T){
		"Get_ShowsEachStepItsPartOfThePayload": TestGet_ShowsEachStepItsPartOfThePayload,
		"Get_OfAJobThatIsNotThere":             TestGet_OfAJobThatIsNotThere,
		"Wait":                                 TestWait,
		"Wait_SeesAnEndThatAnotherProcessBroughtAbout": TestWait_SeesAnEndThatAnotherProcessBroughtAbout,
		"Control_SaysWhetherItChangedAnything":         TestControl_SaysWhetherItChangedAnything,
		"List_NamesTheParameterThatMakesNoSense":       TestList_NamesTheParameterThatMakesNoSense,
		"Rerun_AnswersWithTheNewJob":                   TestRerun_AnswersWithTheNewJob,
		"Follow_ContinuesAfterAnEntry":                 TestFollow_ContinuesAfterAnEntry,
	} {
		t.Run(name, test)
	}
}
