package outbox_test

import "testing"

// TestTableLayout has what holds in the layout "ledger" hold in the layout "table".
func TestTableLayout(t *testing.T) { //nolint:paralleltest // Each of them says it for itself.
	for name, test := range map[string]func(*testing.T){
		"Relay_LeavesWhatIsPaused":                               TestRelay_LeavesWhatIsPaused,
		"Relay_ABacklogThatIsHeldBackHidesNothing":               TestRelay_ABacklogThatIsHeldBackHidesNothing,
		"Relay_PublishesWhatIsCommittedAndMarksIt":               TestRelay_PublishesWhatIsCommittedAndMarksIt,
		"Relay_ACrashBetweenPublishAndMarkPublishesTheSameAgain": TestRelay_ACrashBetweenPublishAndMarkPublishesTheSameAgain,
		"Relay_ARejectedMessageComesBackWithANewPair":            TestRelay_ARejectedMessageComesBackWithANewPair,
		"Relay_AnUnknownOutcomeIsTriedAgainUnderTheSameID":       TestRelay_AnUnknownOutcomeIsTriedAgainUnderTheSameID,
		"Relay_AnOutageFailsNothing":                             TestRelay_AnOutageFailsNothing,
		"Relay_APublisherThatDoesNotComeBackIsLeftBehind":        TestRelay_APublisherThatDoesNotComeBackIsLeftBehind,
		"Relay_WhatDoesNotFitTheInboxIsFoundLater":               TestRelay_WhatDoesNotFitTheInboxIsFoundLater,
		"Relay_FinishesWhatItHoldsWhenItStops":                   TestRelay_FinishesWhatItHoldsWhenItStops,
		"Operator_Retry":                                         TestOperator_Retry,
	} {
		t.Run(name, test)
	}
}
