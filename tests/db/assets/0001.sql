BEGIN TRANSACTION;
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0001');
CREATE TABLE blob (
	sha256 TEXT NOT NULL, 
	dtype TEXT NOT NULL, 
	shape TEXT NOT NULL, 
	nbytes INTEGER NOT NULL, 
	present INTEGER NOT NULL, 
	hint TEXT, 
	added_us INTEGER NOT NULL, 
	verified_us INTEGER, 
	CONSTRAINT pk_blob PRIMARY KEY (sha256), 
	CONSTRAINT ck_blob_present CHECK (present IN (0, 1)), 
	CONSTRAINT ck_blob_shape_json CHECK (shape IS NULL OR json_valid(shape))
)
 WITHOUT ROWID,
 STRICT

;
INSERT INTO "blob" VALUES('75683898c1f4b4f9f65b0eb95a5c46422af0fcf87f0f9ad6e3e4a588d287a548','float32','[1]',4,1,NULL,1796065100956581,NULL);
INSERT INTO "blob" VALUES('ac970585ead3f84646143d98ac9e21df73c9d3a970d0691af6c1b2fef1307cab','float32','[1]',4,1,NULL,1796065100956581,NULL);
CREATE TABLE capture (
	id INTEGER NOT NULL, 
	uuid TEXT NOT NULL, 
	run_id INTEGER NOT NULL, 
	workload_id INTEGER NOT NULL, 
	request_pk INTEGER, 
	request_id TEXT, 
	site TEXT NOT NULL, 
	operation TEXT NOT NULL, 
	module_path TEXT, 
	step INTEGER, 
	variant TEXT, 
	process_id INTEGER, 
	rank INTEGER, 
	device TEXT, 
	stall_us INTEGER, 
	captured_us INTEGER NOT NULL, 
	arrived_us INTEGER NOT NULL, 
	receipt TEXT NOT NULL, 
	CONSTRAINT pk_capture PRIMARY KEY (id), 
	CONSTRAINT ck_capture_receipt_json CHECK (receipt IS NULL OR json_valid(receipt)), 
	CONSTRAINT fk_capture_request_pk_request FOREIGN KEY(request_pk) REFERENCES request (id) ON DELETE SET NULL, 
	CONSTRAINT fk_capture_run_id_run FOREIGN KEY(run_id) REFERENCES run (id), 
	CONSTRAINT fk_capture_workload_id_workload FOREIGN KEY(workload_id) REFERENCES workload (id), 
	CONSTRAINT uq_capture_uuid UNIQUE (uuid)
)
 STRICT

;
INSERT INTO "capture" VALUES(1,'01a22dd2-8475-7cb3-aee0-c6d97619efa2-1',1,1,1,NULL,'{"definition":"double","n":1}','toy',NULL,0,NULL,NULL,NULL,NULL,NULL,2,1796065100956874,'{"model": "toy"}');
CREATE TABLE capture_count (
	run_id INTEGER NOT NULL, 
	process TEXT NOT NULL, 
	definition TEXT NOT NULL, 
	outcome TEXT NOT NULL, 
	count INTEGER NOT NULL, 
	CONSTRAINT pk_capture_count PRIMARY KEY (run_id, process, definition, outcome), 
	CONSTRAINT fk_capture_count_run_id_run FOREIGN KEY(run_id) REFERENCES run (id) ON DELETE CASCADE
)
 WITHOUT ROWID,
 STRICT

;
INSERT INTO "capture_count" VALUES(1,'h:1:2','double','seen',3);
CREATE TABLE capture_output (
	capture_id INTEGER NOT NULL, 
	ordinal INTEGER NOT NULL, 
	name TEXT NOT NULL, 
	blob_sha256 TEXT NOT NULL, 
	CONSTRAINT pk_capture_output PRIMARY KEY (capture_id, ordinal), 
	CONSTRAINT fk_capture_output_blob_sha256_blob FOREIGN KEY(blob_sha256) REFERENCES blob (sha256), 
	CONSTRAINT fk_capture_output_capture_id_capture FOREIGN KEY(capture_id) REFERENCES capture (id) ON DELETE CASCADE
)
 WITHOUT ROWID,
 STRICT

;
INSERT INTO "capture_output" VALUES(1,0,'out','ac970585ead3f84646143d98ac9e21df73c9d3a970d0691af6c1b2fef1307cab');
CREATE TABLE capture_worker (
	run_id INTEGER NOT NULL, 
	process TEXT NOT NULL, 
	rank INTEGER, 
	engine TEXT, 
	acknowledged_us INTEGER NOT NULL, 
	drained_us INTEGER, 
	note TEXT, 
	CONSTRAINT pk_capture_worker PRIMARY KEY (run_id, process), 
	CONSTRAINT fk_capture_worker_run_id_run FOREIGN KEY(run_id) REFERENCES run (id) ON DELETE CASCADE
)
 WITHOUT ROWID,
 STRICT

;
INSERT INTO "capture_worker" VALUES(1,'h:1:2',0,'toy',1,2,NULL);
CREATE TABLE definition (
	id INTEGER NOT NULL, 
	name TEXT NOT NULL, 
	sha256 TEXT NOT NULL, 
	op_type TEXT NOT NULL, 
	family TEXT, 
	reference_sha256 TEXT NOT NULL, 
	body TEXT NOT NULL, 
	origin TEXT, 
	added_us INTEGER NOT NULL, 
	CONSTRAINT pk_definition PRIMARY KEY (id), 
	CONSTRAINT ck_definition_body_json CHECK (body IS NULL OR json_valid(body)), 
	CONSTRAINT uq_definition_name UNIQUE (name, sha256)
)
 STRICT

;
INSERT INTO "definition" VALUES(1,'double','1fd1575039e6714f1c1a7de189dc4ca8e917019a057208d954246bbd7d4c6910','toy',NULL,'b493377a9c1410d6328b7cfc695c0efb81c50ce7e5508aa95a6c0f042c4aaf2a','{"name": "double", "op_type": "toy", "axes": {"N": {"type": "var"}}, "inputs": {"x": {"shape": ["N"], "dtype": "float32"}}, "outputs": {"out": {"shape": ["N"], "dtype": "float32"}}, "reference": "def run(x):\n    return x * 2\n"}','test',1796065100956508);
CREATE TABLE environment (
	id INTEGER NOT NULL, 
	sha256 TEXT NOT NULL, 
	os TEXT NOT NULL, 
	python TEXT NOT NULL, 
	torch TEXT, 
	gpu TEXT, 
	capability TEXT, 
	driver TEXT, 
	cuda TEXT, 
	cublaslt TEXT, 
	comfy_kitchen TEXT, 
	facts TEXT NOT NULL, 
	CONSTRAINT pk_environment PRIMARY KEY (id), 
	CONSTRAINT ck_environment_facts_json CHECK (facts IS NULL OR json_valid(facts)), 
	CONSTRAINT uq_environment_sha256 UNIQUE (sha256)
)
 STRICT

;
INSERT INTO "environment" VALUES(1,'ede9cebcbac48027a56391bae2e55c769540c82fb58088542574402a39c4ca34','Linux 6.18.44','3.11.7','2.13.0+cpu',NULL,NULL,NULL,NULL,NULL,'0.2.40','{"comfy_kitchen":"0.2.40","cpu":"AMD EPYC","kclab":"0.1.0","machine":"x86_64","os":"Linux 6.18.44","python":"3.11.7","torch":"2.13.0+cpu"}');
CREATE TABLE error (
	id INTEGER NOT NULL, 
	run_id INTEGER NOT NULL, 
	at_us INTEGER NOT NULL, 
	operation TEXT NOT NULL, 
	kind TEXT NOT NULL, 
	message TEXT NOT NULL, 
	traceback TEXT, 
	context TEXT, 
	CONSTRAINT pk_error PRIMARY KEY (id), 
	CONSTRAINT ck_error_context_json CHECK (context IS NULL OR json_valid(context)), 
	CONSTRAINT fk_error_run_id_run FOREIGN KEY(run_id) REFERENCES run (id) ON DELETE CASCADE
)
 STRICT

;
INSERT INTO "error" VALUES(1,1,1796065100957138,'test','kind','message',NULL,'{"a": 1}');
CREATE TABLE foreign_record (
	id INTEGER NOT NULL, 
	kind TEXT NOT NULL, 
	sha256 TEXT NOT NULL, 
	definition TEXT, 
	workload_uuid TEXT, 
	path TEXT NOT NULL, 
	body TEXT NOT NULL, 
	run_id INTEGER NOT NULL, 
	CONSTRAINT pk_foreign_record PRIMARY KEY (id), 
	CONSTRAINT ck_foreign_record_body_json CHECK (body IS NULL OR json_valid(body)), 
	CONSTRAINT fk_foreign_record_run_id_run FOREIGN KEY(run_id) REFERENCES run (id) ON DELETE CASCADE, 
	CONSTRAINT uq_foreign_record_kind UNIQUE (kind, sha256)
)
 STRICT

;
INSERT INTO "foreign_record" VALUES(1,'solution','ab',NULL,NULL,'p','{}',1);
CREATE TABLE measurement (
	id INTEGER NOT NULL, 
	run_id INTEGER NOT NULL, 
	name TEXT NOT NULL, 
	baseline_ms REAL, 
	candidate_ms REAL, 
	ratio REAL, 
	ratio_low REAL, 
	ratio_high REAL, 
	pairs INTEGER NOT NULL, 
	verdict TEXT, 
	detail TEXT, 
	CONSTRAINT pk_measurement PRIMARY KEY (id), 
	CONSTRAINT ck_measurement_detail_json CHECK (detail IS NULL OR json_valid(detail)), 
	CONSTRAINT fk_measurement_run_id_run FOREIGN KEY(run_id) REFERENCES run (id) ON DELETE CASCADE
)
 STRICT

;
INSERT INTO "measurement" VALUES(1,1,'gemm',NULL,NULL,NULL,NULL,NULL,1,NULL,NULL);
CREATE TABLE oracle_output (
	replay_id INTEGER NOT NULL, 
	ordinal INTEGER NOT NULL, 
	verdict TEXT NOT NULL, 
	engine_max_ulp REAL, 
	engine_rms_ulp REAL, 
	engine_max_abs REAL, 
	reference_max_ulp REAL, 
	reference_rms_ulp REAL, 
	reference_max_abs REAL, 
	bound_ulp REAL, 
	metrics TEXT, 
	CONSTRAINT pk_oracle_output PRIMARY KEY (replay_id, ordinal), 
	CONSTRAINT ck_oracle_output_metrics_json CHECK (metrics IS NULL OR json_valid(metrics)), 
	CONSTRAINT fk_oracle_output_replay_id_replay FOREIGN KEY(replay_id) REFERENCES replay (id) ON DELETE CASCADE
)
 WITHOUT ROWID,
 STRICT

;
INSERT INTO "oracle_output" VALUES(1,0,'neither',0.5,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
CREATE TABLE replay (
	id INTEGER NOT NULL, 
	run_id INTEGER NOT NULL, 
	subject TEXT NOT NULL, 
	definition TEXT NOT NULL, 
	capture_id INTEGER, 
	workload_id INTEGER, 
	definition_id INTEGER, 
	origin TEXT, 
	status TEXT NOT NULL, 
	reason TEXT, 
	warning TEXT, 
	imported INTEGER NOT NULL, 
	device TEXT, 
	seconds REAL, 
	started_us INTEGER NOT NULL, 
	error_id INTEGER, 
	CONSTRAINT pk_replay PRIMARY KEY (id), 
	CONSTRAINT ck_replay_status CHECK (status IN ('passed', 'failed', 'error', 'skipped')), 
	CONSTRAINT fk_replay_capture_id_capture FOREIGN KEY(capture_id) REFERENCES capture (id) ON DELETE CASCADE, 
	CONSTRAINT fk_replay_definition_id_definition FOREIGN KEY(definition_id) REFERENCES definition (id), 
	CONSTRAINT fk_replay_error_id_error FOREIGN KEY(error_id) REFERENCES error (id) ON DELETE SET NULL, 
	CONSTRAINT fk_replay_run_id_run FOREIGN KEY(run_id) REFERENCES run (id) ON DELETE CASCADE, 
	CONSTRAINT fk_replay_workload_id_workload FOREIGN KEY(workload_id) REFERENCES workload (id) ON DELETE CASCADE
)
 STRICT

;
INSERT INTO "replay" VALUES(1,1,'workload','double',1,1,1,NULL,'passed',NULL,NULL,0,NULL,NULL,3,NULL);
CREATE TABLE replay_output (
	replay_id INTEGER NOT NULL, 
	ordinal INTEGER NOT NULL, 
	name TEXT NOT NULL, 
	dtype TEXT NOT NULL, 
	passed INTEGER NOT NULL, 
	policy TEXT NOT NULL, 
	rtol REAL, 
	atol REAL, 
	elements INTEGER NOT NULL, 
	mismatched INTEGER NOT NULL, 
	max_abs REAL, 
	rms REAL, 
	relative_rms REAL, 
	worst_index TEXT, 
	worst_engine TEXT, 
	worst_reference TEXT, 
	reason TEXT, 
	metrics TEXT, 
	CONSTRAINT pk_replay_output PRIMARY KEY (replay_id, ordinal), 
	CONSTRAINT ck_replay_output_metrics_json CHECK (metrics IS NULL OR json_valid(metrics)), 
	CONSTRAINT ck_replay_output_worst_index_json CHECK (worst_index IS NULL OR json_valid(worst_index)), 
	CONSTRAINT fk_replay_output_replay_id_replay FOREIGN KEY(replay_id) REFERENCES replay (id) ON DELETE CASCADE
)
 WITHOUT ROWID,
 STRICT

;
INSERT INTO "replay_output" VALUES(1,0,'out','float32',1,'allclose',NULL,NULL,3,0,NULL,0.0,NULL,'[0]',NULL,NULL,NULL,NULL);
CREATE TABLE request (
	id INTEGER NOT NULL, 
	run_id INTEGER NOT NULL, 
	request_id TEXT NOT NULL, 
	payload TEXT NOT NULL, 
	response TEXT, 
	status_code INTEGER, 
	started_us INTEGER NOT NULL, 
	finished_us INTEGER, 
	CONSTRAINT pk_request PRIMARY KEY (id), 
	CONSTRAINT ck_request_payload_json CHECK (payload IS NULL OR json_valid(payload)), 
	CONSTRAINT ck_request_response_json CHECK (response IS NULL OR json_valid(response)), 
	CONSTRAINT fk_request_run_id_run FOREIGN KEY(run_id) REFERENCES run (id) ON DELETE CASCADE, 
	CONSTRAINT uq_request_run_id UNIQUE (run_id, request_id)
)
 STRICT

;
INSERT INTO "request" VALUES(1,1,'r1','{"prompt": "a"}',NULL,NULL,1,NULL);
CREATE TABLE run (
	id INTEGER NOT NULL, 
	uuid TEXT NOT NULL, 
	command TEXT NOT NULL, 
	mode TEXT, 
	status TEXT NOT NULL, 
	started_us INTEGER NOT NULL, 
	finished_us INTEGER, 
	heartbeat_us INTEGER NOT NULL, 
	pid INTEGER NOT NULL, 
	process_started_us INTEGER, 
	boot_id TEXT, 
	environment_id INTEGER NOT NULL, 
	parent_id INTEGER, 
	exit_code INTEGER, 
	git_commit TEXT, 
	git_dirty INTEGER, 
	host TEXT, 
	gpu_uuid TEXT, 
	note TEXT, 
	argv TEXT NOT NULL, 
	params TEXT NOT NULL, 
	volatile TEXT, 
	summary TEXT, 
	CONSTRAINT pk_run PRIMARY KEY (id), 
	CONSTRAINT ck_run_status CHECK (status IN ('running', 'passed', 'failed', 'empty', 'error', 'interrupted', 'stale')), 
	CONSTRAINT ck_run_argv_json CHECK (argv IS NULL OR json_valid(argv)), 
	CONSTRAINT ck_run_params_json CHECK (params IS NULL OR json_valid(params)), 
	CONSTRAINT ck_run_volatile_json CHECK (volatile IS NULL OR json_valid(volatile)), 
	CONSTRAINT fk_run_environment_id_environment FOREIGN KEY(environment_id) REFERENCES environment (id), 
	CONSTRAINT fk_run_parent_id_run FOREIGN KEY(parent_id) REFERENCES run (id), 
	CONSTRAINT uq_run_uuid UNIQUE (uuid)
)
 STRICT

;
INSERT INTO "run" VALUES(1,'01a22dd2-8475-7cb3-aee0-c6d97619efa2','capture',NULL,'passed',1796065100917832,1796065100957596,1796065100957596,20750,2375280000,'a6c3323a-75ea-4bca-8a68-bd3950d146a7 pid:[4026531836]',1,NULL,0,'c4c64ccc4140bdfcffb35429eeec704650ccc612',1,'vm',NULL,NULL,'["kclab", "capture"]','{"steps": [0]}',NULL,NULL);
CREATE TABLE run_tag (
	run_id INTEGER NOT NULL, 
	tag TEXT NOT NULL, 
	CONSTRAINT pk_run_tag PRIMARY KEY (run_id, tag), 
	CONSTRAINT fk_run_tag_run_id_run FOREIGN KEY(run_id) REFERENCES run (id) ON DELETE CASCADE
)
 WITHOUT ROWID,
 STRICT

;
INSERT INTO "run_tag" VALUES(1,'good');
CREATE TABLE timing_sample (
	measurement_id INTEGER NOT NULL, 
	round INTEGER NOT NULL, 
	position INTEGER NOT NULL, 
	arm TEXT NOT NULL, 
	ms REAL NOT NULL, 
	CONSTRAINT pk_timing_sample PRIMARY KEY (measurement_id, round, position), 
	CONSTRAINT fk_timing_sample_measurement_id_measurement FOREIGN KEY(measurement_id) REFERENCES measurement (id) ON DELETE CASCADE
)
 WITHOUT ROWID,
 STRICT

;
INSERT INTO "timing_sample" VALUES(1,0,0,'A',1.5);
INSERT INTO "timing_sample" VALUES(1,0,1,'B',1.25);
CREATE TABLE workload (
	id INTEGER NOT NULL, 
	uuid TEXT NOT NULL, 
	definition_id INTEGER NOT NULL, 
	axes TEXT NOT NULL, 
	added_us INTEGER NOT NULL, 
	extra TEXT, 
	CONSTRAINT pk_workload PRIMARY KEY (id), 
	CONSTRAINT ck_workload_axes_json CHECK (axes IS NULL OR json_valid(axes)), 
	CONSTRAINT ck_workload_extra_json CHECK (extra IS NULL OR json_valid(extra)), 
	CONSTRAINT fk_workload_definition_id_definition FOREIGN KEY(definition_id) REFERENCES definition (id), 
	CONSTRAINT uq_workload_uuid UNIQUE (uuid)
)
 STRICT

;
INSERT INTO "workload" VALUES(1,'workload-1',1,'{"N": 1}',1796065100956714,NULL);
CREATE TABLE workload_input (
	workload_id INTEGER NOT NULL, 
	name TEXT NOT NULL, 
	blob_sha256 TEXT, 
	scalar TEXT, 
	random TEXT, 
	CONSTRAINT pk_workload_input PRIMARY KEY (workload_id, name), 
	CONSTRAINT ck_workload_input_one_source CHECK ((blob_sha256 IS NOT NULL) + (scalar IS NOT NULL) + (random IS NOT NULL) = 1), 
	CONSTRAINT fk_workload_input_blob_sha256_blob FOREIGN KEY(blob_sha256) REFERENCES blob (sha256), 
	CONSTRAINT fk_workload_input_workload_id_workload FOREIGN KEY(workload_id) REFERENCES workload (id) ON DELETE CASCADE
)
 WITHOUT ROWID,
 STRICT

;
INSERT INTO "workload_input" VALUES(1,'s',NULL,'2.0',NULL);
INSERT INTO "workload_input" VALUES(1,'x','75683898c1f4b4f9f65b0eb95a5c46422af0fcf87f0f9ad6e3e4a588d287a548',NULL,NULL);
CREATE INDEX ix_run_command_started ON run (command, started_us);
CREATE INDEX ix_run_environment_id ON run (environment_id);
CREATE INDEX ix_run_live ON run (heartbeat_us) WHERE status = 'running';
CREATE INDEX ix_run_parent_id ON run (parent_id);
CREATE INDEX ix_run_started ON run (started_us);
CREATE INDEX ix_workload_definition ON workload (definition_id, id);
CREATE INDEX ix_error_run_id ON error (run_id);
CREATE INDEX ix_foreign_record_run_id ON foreign_record (run_id);
CREATE INDEX ix_measurement_run_name ON measurement (run_id, name);
CREATE INDEX ix_run_tag_tag ON run_tag (tag, run_id);
CREATE INDEX ix_workload_input_blob_sha256 ON workload_input (blob_sha256);
CREATE INDEX ix_capture_arrived ON capture (arrived_us);
CREATE INDEX ix_capture_captured ON capture (captured_us);
CREATE INDEX ix_capture_run_site ON capture (run_id, site);
CREATE INDEX ix_capture_workload ON capture (workload_id, captured_us);
CREATE INDEX ix_capture_output_blob_sha256 ON capture_output (blob_sha256);
CREATE INDEX ix_replay_capture ON replay (capture_id, started_us, status);
CREATE INDEX ix_replay_definition ON replay (definition_id, started_us);
CREATE INDEX ix_replay_run ON replay (run_id, status);
CREATE INDEX ix_replay_started ON replay (started_us);
CREATE INDEX ix_replay_subject ON replay (subject, started_us);
CREATE INDEX ix_replay_workload_id ON replay (workload_id);
COMMIT;
