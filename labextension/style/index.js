import './base.css';
import './sessions.css';
import './dialogs.css';
